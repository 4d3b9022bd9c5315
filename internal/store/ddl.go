package store

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

//go:embed ddl/*.sql
var ddlFiles embed.FS

//go:embed ddl/landed.sum
var landed string

// Statement is one DDL statement of the schema.
type Statement struct {
	File  string // "0001_events.sql"
	Index int    // from 0, within the file
	SQL   string // without the final semicolon and without comments
}

// Sum is the statement's line in ddl/landed.sum.
func (s Statement) Sum() string {
	h := sha256.Sum256([]byte(s.SQL))
	return fmt.Sprintf("%s %s#%d", hex.EncodeToString(h[:]), s.File, s.Index)
}

// Statements is the whole schema in the order of its landing: files by name, and
// the statements within each. A comment is a whole line that begins with "--", and
// a statement ends with a semicolon at the end of a line, so that other tools can
// read the files the same way: drop the comments, split, trim. Once landed, a
// statement is never edited, moved or removed: tools compare texts, and one that
// sees a changed statement may offer to re-create the database.
func Statements() []Statement {
	files, err := ddlFiles.ReadDir("ddl")
	if err != nil {
		panic("store: embedded DDL: " + err.Error()) // cannot fail once built
	}
	var out []Statement
	for _, f := range files {
		b, err := ddlFiles.ReadFile("ddl/" + f.Name())
		if err != nil {
			panic("store: embedded DDL: " + err.Error())
		}
		out = append(out, splitDDL(f.Name(), string(b))...)
	}
	return out
}

func splitDDL(file, text string) []Statement {
	var code strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "--") {
			code.WriteString(strings.TrimRight(line, "\r\n") + "\n")
		}
	}
	var out []Statement
	for part := range strings.SplitSeq(code.String(), ";\n") {
		if sql := strings.TrimSpace(part); sql != "" {
			out = append(out, Statement{File: file, Index: len(out), SQL: sql})
		}
	}
	return out
}

// checkLanded compares statements with the lines of a sum file. The listed ones
// must be the first of the statements, unchanged and in order, and every
// statement must be listed; the error says which line to add.
func checkLanded(statements []Statement, sums string) error {
	lines := slices.DeleteFunc(strings.Split(sums, "\n"), func(l string) bool { return strings.TrimSpace(l) == "" })
	for i, line := range lines {
		switch {
		case i >= len(statements):
			return fmt.Errorf("landed statement %q is gone: landed statements stay for ever", line)
		case statements[i].Sum() != line:
			return fmt.Errorf("landed statement %d was edited or moved: landed is %q, now it is %q; undo that and append a new statement instead", i+1, line, statements[i].Sum())
		}
	}
	var missing []string
	for _, s := range statements[len(lines):] {
		missing = append(missing, s.Sum())
	}
	if len(missing) > 0 {
		return fmt.Errorf("new statements: append to ddl/landed.sum\n%s", strings.Join(missing, "\n"))
	}
	return nil
}
