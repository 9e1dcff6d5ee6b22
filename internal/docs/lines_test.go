package docs

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestLines: no line of Go has more than 120 columns, in any module. A tab is one column. What cannot be broken may be
// longer: a string or a comment of one word, what an example prints, and a raw string in tests and in packages whose
// business is SQL or pictures.
func TestLines(t *testing.T) {
	t.Parallel()
	err := filepath.WalkDir(".", func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && name != "." && strings.HasPrefix(e.Name(), "."):
			return fs.SkipDir
		case e.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}
		source, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(name))
		texts := strings.HasSuffix(name, "_test.go") ||
			slices.Contains([]string{"internal/sqltext", "internal/pictures", "schema"}, dir)
		may := unbreakable(source, texts)
		for i, line := range strings.Split(string(source), "\n") {
			if columns := utf8.RuneCountInString(line); columns > 120 && !may[i+1] {
				t.Errorf("%s:%d has %d columns: break it at 120", name, i+1, columns)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// unbreakable are the numbers of lines that may be long.
func unbreakable(source []byte, texts bool) map[int]bool {
	fset, lines := token.NewFileSet(), map[int]bool{}
	file := fset.AddFile("", -1, len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, scanner.ScanComments)
	output := -1 // the last line of an example's output
	for {
		pos, tok, text := s.Scan()
		line := file.Line(pos)
		words := len(strings.Fields(strings.TrimPrefix(text, "//")))
		switch {
		case tok == token.EOF:
			return lines
		case tok == token.COMMENT && (strings.Contains(strings.ToLower(text), "output:") || output == line-1):
			output, lines[line] = line, true
		case tok == token.COMMENT && words == 1, tok == token.STRING && words == 1 && len(text) > 60:
			lines[line] = true
		case tok == token.STRING && text[0] == '`' && texts:
			for i := range strings.Count(text, "\n") + 1 {
				lines[line+i] = true
			}
		}
	}
}
