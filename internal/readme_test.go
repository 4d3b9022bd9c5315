package internal_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// snippet is one fenced block of the README.
type snippet struct {
	language string
	line     int // of its first line
	text     string
}

// snippets splits the README at its fences.
func snippets(t *testing.T) []snippet {
	t.Helper()
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var out []snippet
	inside := false
	for i, line := range strings.Split(string(text), "\n") {
		fence, rest, _ := strings.Cut(line, "```")
		switch {
		case strings.TrimSpace(fence) == "" && strings.Contains(line, "```") && !inside:
			out = append(out, snippet{language: strings.TrimSpace(rest), line: i + 2})
			inside = true
		case strings.TrimSpace(line) == "```":
			inside = false
		case inside:
			out[len(out)-1].text += line + "\n"
		}
	}
	if inside || len(out) == 0 {
		t.Fatalf("%d fenced blocks, the last one open: %v", len(out), inside)
	}
	return out
}

// checkers say how a block of a language is read by that language itself, from a
// file. A language that is missing on this machine fails the test.
var checkers = map[string]struct {
	suffix  string
	command func(file string) *exec.Cmd
}{
	"sh": {".sh", func(f string) *exec.Cmd { return exec.Command("bash", "-n", f) }},
	"python": {".py", func(f string) *exec.Cmd {
		return exec.Command("python3", "-I", "-c", "import ast, sys; ast.parse(open(sys.argv[1]).read())", f)
	}},
	"js":   {".mjs", func(f string) *exec.Cmd { return exec.Command("node", "--check", f) }},
	"go":   {".go", func(f string) *exec.Cmd { return exec.Command("go", "vet", f) }},
	"json": {".json", func(f string) *exec.Cmd { return exec.Command("python3", "-I", "-m", "json.tool", f) }},
}

// TestReadmeSnippets holds that what people copy can be read by the language it is
// written in; Go is compiled against the very modules.
func TestReadmeSnippets(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	for _, s := range snippets(t) {
		seen[s.language]++
		check, known := checkers[s.language]
		if !known {
			continue
		}
		t.Run(fmt.Sprintf("%s at line %d", s.language, s.line), func(t *testing.T) {
			t.Parallel()
			if s.language == "go" && !strings.HasPrefix(s.text, "package ") {
				t.Fatal("a Go block is to be a whole file, so that it can be compiled")
			}
			file := filepath.Join(t.TempDir(), "snippet"+check.suffix)
			if err := os.WriteFile(file, []byte(s.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := check.command(file).CombinedOutput(); err != nil {
				t.Errorf("%v\n%s\n%s", err, out, s.text)
			}
		})
	}
	for _, language := range []string{"sh", "python", "js", "go"} {
		if seen[language] == 0 {
			t.Errorf("the README has no %s block", language)
		}
	}
}

// TestReadmeLinks holds that every link to a place in the README leads to one, and
// every link to a file to a file.
func TestReadmeLinks(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var places []string
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllSubmatch(text, -1) {
		places = append(places, anchor(string(m[1])))
	}
	for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllSubmatch(text, -1) {
		to := string(m[1])
		place, inside := strings.CutPrefix(to, "#")
		switch {
		case inside && !slices.Contains(places, place):
			t.Errorf("link to #%s, and there is no such heading", place)
		case !inside && !strings.Contains(to, "://"):
			if _, err := os.Stat(filepath.Join("..", to)); err != nil {
				t.Errorf("link to %s: %v", to, err)
			}
		}
	}
}

// anchor is what GitHub makes of a heading.
func anchor(heading string) string {
	var b bytes.Buffer
	for _, r := range strings.ToLower(strings.TrimSpace(heading)) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r > 127:
			b.WriteRune(r)
		}
	}
	return b.String()
}
