package provider

import (
	"bytes"
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the README's table of schemes")

// The README's table is what the code says.
func TestTableOfSchemes(t *testing.T) {
	t.Parallel()
	const file, begin, end = "../../README.md", "<!-- schemes -->\n", "<!-- /schemes -->"
	var table bytes.Buffer
	if err := WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(readme), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table of schemes", file)
	}
	want := before + begin + table.String() + end + after
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(readme) {
		t.Errorf("%s: the table of schemes is not what the code says; write it with go test ./internal/provider -run TableOfSchemes -update", file)
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
