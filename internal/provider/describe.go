package provider

import (
	"fmt"
	"io"
	"strings"
)

// WriteTable writes the table of schemes as Markdown, one row each, and below it
// what to know of some, such as what they do not prove. The README holds it; a test keeps it true.
func WriteTable(w io.Writer) error {
	var b strings.Builder
	b.WriteString("| scheme | signature | algorithm | event id | freshness | handshake | settings beside the secret | checked against |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|\n")
	for _, in := range Schemes() {
		cells := []string{"[" + in.Name + "](" + in.Docs + ")", in.Signature, in.Algorithm, in.ID, in.Freshness, in.Handshake, in.Settings, in.CheckedAgainst}
		if !strings.HasPrefix(in.Docs, "https://") {
			cells[0] = in.Name
		}
		for i, c := range cells {
			if cells[i] = strings.NewReplacer("|", `\|`, "<", "&lt;", ">", "&gt;").Replace(c); c == "" {
				cells[i] = "–"
			}
		}
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	b.WriteString("\nWhat to know of some schemes:\n\n")
	for _, in := range Schemes() {
		if in.Note != "" {
			fmt.Fprintf(&b, "- **%s**: %s.\n", in.Name, in.Note)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
