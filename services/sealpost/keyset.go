package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/sealpost/sealpost/internal/secrets"
)

func (c *cli) keysetCommand() *cobra.Command {
	return group("keyset", "Make the keyset that seals endpoints' signing keys", c.keysetNew())
}

func (c *cli) keysetNew() *cobra.Command {
	return &cobra.Command{
		Use:   "new",
		Short: "Print a fresh keyset",
		Long: `Prints a fresh keyset, in the clear, for a version of the secret that KEYSET_SECRET names:

  sealpost keyset new | gcloud secrets versions add sealpost-keyset --data-file=-

Who has it can open every endpoint's signing keys; who loses it loses them. It is not
printed to a terminal. To rotate, add a version, list its number beside the old one in
KEYSET_VERSIONS, and keep the old one for as long as keys are sealed with it.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			if f, ok := c.out.(*os.File); ok {
				if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
					return usageError{errors.New("a keyset is not printed to a terminal: pipe it into gcloud, see 'sealpost keyset new --help'")}
				}
			}
			b, err := secrets.NewKeyset()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.out, "%s", b)
			return err
		},
	}
}
