package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/sealpost/sealpost/internal/receive"
)

func (c *cli) verifyCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "verify --requests FILE",
		Short: "Say whether captured requests verify, and why not",
		Long: `Runs captured requests through the receiver's own routes, byte for byte as on the wire,
and prints one JSON line each: {"name","verdict":"accept"|"reject","reason"}.

FILE (- for standard input) holds a JSON array of requests, or one request:
  name            for the answer
  scheme          such as stripe, github, standard-webhooks
  secret          a string, or a list while rotating
  headers         an object; a value may be a list (several header lines)
  method, url     where the scheme signs them
  body_base64     the exact bytes
  now_unix        the clock at verification, in seconds
  options         tolerance_s, header, hash, encoding, prefix, …
  other_secrets   secrets of other endpoints, for the explanation

With one request instead of an array, a refusal's "explanation" says in words what a
person can do about it, and the exit code is 1. An array's verdicts are a report: the exit
code is 0 once all were judged.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return usageError{errors.New("--requests is needed")}
			}
			requests, single, err := c.readRequests(file)
			if err != nil {
				return usageError{err}
			}
			for _, v := range receive.VerifyRequests(cmd.Context(), requests) {
				if err := c.printJSON(v); err != nil {
					return err
				}
				if single && v.Verdict != "accept" {
					return errNo
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&file, "requests", "", "file of captured requests, or - for standard input (needed)")
	return cmd
}

// readRequests reads an array of requests, or one alone.
func (c *cli) readRequests(file string) (requests []receive.CapturedRequest, single bool, err error) {
	var b []byte
	if file == "-" {
		b, err = io.ReadAll(c.in)
	} else {
		b, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, false, err
	}
	if b = bytes.TrimSpace(b); bytes.HasPrefix(b, []byte("{")) {
		requests, single = make([]receive.CapturedRequest, 1), true
		err = json.Unmarshal(b, &requests[0])
	} else {
		err = json.Unmarshal(b, &requests)
	}
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", file, err)
	}
	if len(requests) == 0 {
		return nil, false, fmt.Errorf("%s: holds no request", file)
	}
	return requests, single, nil
}
