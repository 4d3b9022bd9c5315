package provider

import (
	"bytes"
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/schemes.md")

func TestTableOfSchemes(t *testing.T) {
	t.Parallel()
	const file = "testdata/schemes.md"
	var got bytes.Buffer
	if err := WriteTable(&got); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%s is not what the table says; write it with go test -run TableOfSchemes -update", file)
	}
}

func TestSchemesAreDocumented(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, in := range Schemes() {
		if in.Name == "" || in.Docs == "" || in.Algorithm == "" || in.ID == "" || in.Type == "" || seen[in.Name] {
			t.Errorf("incomplete or twice: %+v", in)
		}
		seen[in.Name] = true
		if in.Name != genericHMAC && (in.Signature == "" || in.SignedContent == "" || in.Encoding == "") {
			t.Errorf("incomplete: %+v", in)
		}
		known := false
		for _, kind := range []string{"published vector", "official", "API document", "docs only", "vectors of other", "vector of another"} {
			known = known || strings.HasPrefix(in.CheckedAgainst, kind)
		}
		if !known {
			t.Errorf("%s: checked against %q", in.Name, in.CheckedAgainst)
		}
	}
	if len(seen) < 38 {
		t.Errorf("%d schemes", len(seen))
	}
}
