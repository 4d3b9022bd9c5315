package main

import (
	"testing"

	"github.com/sealpost/sealpost/internal/secrets"
)

// What is printed is a keyset that seals and opens, another one each time.
func TestKeysetNew(t *testing.T) {
	t.Parallel()
	one, two := bare(t, none, "", "keyset", "new"), bare(t, none, "", "keyset", "new")
	if one.code != 0 || one.err != "" || one.out == two.out {
		t.Fatalf("exit %d, stderr %q, the same twice: %v", one.code, one.err, one.out == two.out)
	}
	s, err := secrets.NewSealer(map[int][]byte{1: []byte(one.out)})
	if err != nil {
		t.Fatal(err)
	}
	sealed, by, err := s.Seal([]byte("key"), "t", "ep")
	if err != nil {
		t.Fatal(err)
	}
	if key, err := s.Open(sealed, by, "t", "ep"); err != nil || string(key) != "key" {
		t.Errorf("%q, %v", key, err)
	}
	if r := bare(t, none, "", "keyset", "new", "x"); r.code != exitUsage {
		t.Errorf("an argument: exit %d", r.code)
	}
}
