package provider

import (
	"bytes"
	"flag"
	"io"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the README's table of schemes")

// What the README says of the schemes is what the code says.
func TestTableOfSchemes(t *testing.T) {
	const file = "../../README.md"
	for _, block := range []struct {
		begin, end string
		write      func(io.Writer) error
	}{
		{"<!-- schemes -->\n", "<!-- /schemes -->", WriteTable},
		{"<!-- sources -->\n```hcl\n", "```\n<!-- /sources -->", WriteTerraform},
	} {
		var text bytes.Buffer
		if err := block.write(&text); err != nil {
			t.Fatal(err)
		}
		readme, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		before, rest, ok := strings.Cut(string(readme), block.begin)
		_, after, ok2 := strings.Cut(rest, block.end)
		if !ok || !ok2 {
			t.Fatalf("%s has no place for %q", file, block.begin)
		}
		want := before + block.begin + text.String() + block.end + after
		if *update {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		} else if want != string(readme) {
			t.Errorf("%s: what follows %q is not what the code says; write it with go test ./internal/provider -run TableOfSchemes -update", file, block.begin)
		}
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
