package provider

import (
	"encoding/base64"
	"fmt"
)

// GatewayBody gives the bytes that a provider sent, out of what a gateway made
// of them: some pass the body as base64 text and set a flag (API Gateway's
// isBase64Encoded). It decodes once, and only on the explicit flag; without it
// the body is returned as it is, however much it looks like base64. Nothing in
// the receiver guesses.
func GatewayBody(body []byte, isBase64Encoded bool) ([]byte, error) {
	if !isBase64Encoded {
		return body, nil
	}
	b, err := base64.StdEncoding.Strict().DecodeString(string(body))
	if err != nil {
		return nil, fmt.Errorf("gateway body: flagged as base64, but it is not: %w", err)
	}
	return b, nil
}
