package secrets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/insecurecleartextkeyset"
	"github.com/tink-crypto/tink-go/v2/keyset"
	"github.com/tink-crypto/tink-go/v2/tink"
)

// Sealer seals endpoint keys with AES-256-GCM under Tink keysets, each of which
// is a version of one Secret Manager secret. The associated data is tenant and
// endpoint, so that a sealed key moved to another row does not open.
//
// It seals with the newest listed version and opens with any: rotation = add a
// number, re-seal, remove the old number. Safe for concurrent use.
type Sealer struct {
	byVersion map[string]tink.AEAD
	newest    string
}

// NewKeyset makes a fresh keyset in the form that the secret's version holds.
func NewKeyset() ([]byte, error) {
	h, err := keyset.NewHandle(aead.AES256GCMKeyTemplate())
	if err != nil {
		return nil, fmt.Errorf("make a keyset: %w", err)
	}
	var b bytes.Buffer
	if err := insecurecleartextkeyset.Write(h, keyset.NewJSONWriter(&b)); err != nil {
		return nil, fmt.Errorf("write a keyset: %w", err)
	}
	return b.Bytes(), nil
}

// Sealer reads the listed versions of the keyset secret. Every number must be
// readable and hold a keyset.
func (c *Client) Sealer(ctx context.Context, project, name string, versions []int) (*Sealer, error) {
	keysets := map[int][]byte{}
	for _, v := range versions {
		b, err := c.Access(ctx, project, name, v)
		if err != nil {
			return nil, fmt.Errorf("keyset: %w", err)
		}
		keysets[v] = b
	}
	return NewSealer(keysets)
}

// NewSealer makes a sealer of keysets by version number; at least one is needed.
func NewSealer(keysets map[int][]byte) (*Sealer, error) {
	if len(keysets) == 0 {
		return nil, errors.New("keyset: no version is listed")
	}
	s := &Sealer{byVersion: map[string]tink.AEAD{}}
	newest := 0
	for v, b := range keysets {
		h, err := insecurecleartextkeyset.Read(keyset.NewJSONReader(bytes.NewReader(b)))
		if err != nil {
			return nil, fmt.Errorf("keyset version %d is not a Tink keyset", v) // the cause could quote key material
		}
		a, err := aead.New(h)
		if err != nil {
			return nil, fmt.Errorf("keyset version %d is not for AEAD", v)
		}
		s.byVersion[strconv.Itoa(v)] = a
		newest = max(newest, v)
	}
	s.newest = strconv.Itoa(newest)
	return s, nil
}

// Newest is the version that Seal uses.
func (s *Sealer) Newest() string { return s.newest }

// Seal encrypts an endpoint's key and names the keyset version that did it.
func (s *Sealer) Seal(key []byte, tenant, endpoint string) (sealed []byte, by string, err error) {
	sealed, err = s.byVersion[s.newest].Encrypt(key, associated(tenant, endpoint))
	if err != nil {
		return nil, "", fmt.Errorf("seal a key of %s/%s: %w", tenant, endpoint, err)
	}
	return sealed, s.newest, nil
}

// Open decrypts what Seal gave, under the keyset version that did it.
func (s *Sealer) Open(sealed []byte, by, tenant, endpoint string) ([]byte, error) {
	a, ok := s.byVersion[by]
	if !ok {
		return nil, fmt.Errorf("open a key of %s/%s: keyset version %q is not loaded", tenant, endpoint, by)
	}
	key, err := a.Decrypt(sealed, associated(tenant, endpoint))
	if err != nil {
		return nil, fmt.Errorf("open a key of %s/%s: %w", tenant, endpoint, err)
	}
	return key, nil
}

// associated binds a sealed key to its row. Names hold no zero byte.
func associated(tenant, endpoint string) []byte { return []byte(tenant + "\x00" + endpoint) }
