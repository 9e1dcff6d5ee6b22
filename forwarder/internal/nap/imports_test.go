package nap

import (
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
)

// What decides must not know what it decides about: no clock, goroutine, lock, context, logger or database.
func TestImports(t *testing.T) {
	allowed := map[string]bool{"time": true}
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		source, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(token.NewFileSet(), f.Name(), source, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range file.Imports {
			if path, _ := strconv.Unquote(i.Path.Value); !allowed[path] {
				t.Errorf("%s imports %s", f.Name(), path)
			}
		}
		for _, word := range []string{"time.Now", "time.Since", "time.After", "time.Sleep", "go func", "time.NewT"} {
			if strings.Contains(string(source), word) {
				t.Errorf("%s has %s", f.Name(), word)
			}
		}
	}
}
