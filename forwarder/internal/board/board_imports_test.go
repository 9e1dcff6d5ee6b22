package board_test

import (
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The board is pure: it imports nothing that has a clock, starts something, locks, logs or talks to anybody. (time is for
// its types: now is an argument.)
func TestImports(t *testing.T) {
	allowed := []string{"cmp", "container/heap", "math/bits", "slices", "time"}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		files++
		source, err := os.ReadFile(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		f, err := parser.ParseFile(token.NewFileSet(), e.Name(), source, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			if path, _ := strconv.Unquote(i.Path.Value); !slices.Contains(allowed, path) {
				t.Errorf("%s imports %s", e.Name(), path)
			}
		}
		for _, call := range []string{"time.Now(", "time.Since(", "time.After(", "time.NewTimer(", "go func"} {
			if strings.Contains(string(source), call) {
				t.Errorf("%s calls %s", e.Name(), call)
			}
		}
	}
	if files < 10 {
		t.Fatalf("only %d files", files)
	}
}
