package secrets

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

func freshKeyset(t *testing.T) []byte {
	t.Helper()
	b, err := NewKeyset()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func sealer(t *testing.T, keysets map[int][]byte) *Sealer {
	t.Helper()
	s, err := NewSealer(keysets)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSealOpensInItsRowOnly(t *testing.T) {
	t.Parallel()
	s := sealer(t, map[int][]byte{1: freshKeyset(t)})
	sealed, by, err := s.Seal([]byte("whsec_x"), "t1", "ep-1")
	if err != nil || by != "1" || bytes.Contains(sealed, []byte("whsec_x")) {
		t.Fatalf("Seal = %q by %q, %v", sealed, by, err)
	}
	flipped := bytes.Clone(sealed)
	flipped[len(flipped)-1] ^= 1
	for _, tt := range []struct {
		name, by, tenant, endpoint string
		sealed                     []byte
		ok                         bool
	}{
		{"its own row", "1", "t1", "ep-1", sealed, true},
		{"other tenant", "1", "t2", "ep-1", sealed, false},
		{"other endpoint", "1", "t1", "ep-2", sealed, false},
		{"boundary moved", "1", "t1e", "p-1", sealed, false},
		{"unknown keyset", "2", "t1", "ep-1", sealed, false},
		{"damaged", "1", "t1", "ep-1", flipped, false},
		{"truncated", "1", "t1", "ep-1", sealed[:8], false},
		{"empty", "1", "t1", "ep-1", nil, false},
	} {
		got, err := s.Open(tt.sealed, tt.by, tt.tenant, tt.endpoint)
		if (err == nil) != tt.ok || (tt.ok && string(got) != "whsec_x") {
			t.Errorf("%s: %q, %v", tt.name, got, err)
		}
	}
}

// Rotation: a new number seals, the old one still opens; once it is not listed
// any more it does not.
func TestSealerRotation(t *testing.T) {
	t.Parallel()
	one, two := freshKeyset(t), freshKeyset(t)
	old := sealer(t, map[int][]byte{9: one})
	sealed, by, err := old.Seal([]byte("k"), "t", "e")
	if err != nil {
		t.Fatal(err)
	}
	both := sealer(t, map[int][]byte{9: one, 10: two})
	if got, err := both.Open(sealed, by, "t", "e"); err != nil || string(got) != "k" {
		t.Errorf("old key under both keysets: %q, %v", got, err)
	}
	if _, by, _ := both.Seal([]byte("k"), "t", "e"); by != "10" || both.Newest() != "10" {
		t.Errorf("sealed by %s, want 10 (versions are numbers, not text)", by)
	}
	if _, err := sealer(t, map[int][]byte{10: two}).Open(sealed, by, "t", "e"); err == nil {
		t.Error("a retired keyset still opens")
	}
}

func TestNewSealerRefuses(t *testing.T) {
	t.Parallel()
	for name, ks := range map[string]map[int][]byte{
		"none": {}, "nil": nil, "empty": {1: {}}, "text": {1: []byte("hello")}, "one good, one bad": {1: freshKeyset(t), 2: []byte("{}")},
	} {
		if _, err := NewSealer(ks); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	secretish := `{"primaryKeyId":1,"key":[{"keyData":{"value":"c2VjcmV0LW1hdGVyaWFs"}}]}`
	if _, err := NewSealer(map[int][]byte{1: []byte(secretish)}); err == nil || strings.Contains(err.Error(), "c2VjcmV0") {
		t.Errorf("error quotes key material: %v", err)
	}
}

func ExampleSealer() {
	ks, _ := NewKeyset()
	s, _ := NewSealer(map[int][]byte{1: ks})
	sealed, by, _ := s.Seal([]byte("whsec_…"), "acme", "billing")
	key, _ := s.Open(sealed, by, "acme", "billing")
	fmt.Println(string(key), "under keyset version", by)
	_, err := s.Open(sealed, by, "acme", "another")
	fmt.Println(err != nil)
	// Output:
	// whsec_… under keyset version 1
	// true
}
