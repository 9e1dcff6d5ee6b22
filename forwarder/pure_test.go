package forwarder

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestDecidingPackagesArePure: packages that make decisions use no clock, goroutine, lock, context, logger or database,
// and do not import each other (except coordinator, which joins them). They import time for its types: the current time
// is an argument.
func TestDecidingPackagesArePure(t *testing.T) {
	const internal = "github.com/millrace-go/watermill-outbox/forwarder/internal/"
	for name, allowed := range map[string][]string{
		"coordinator": {
			"maps", "math", "slices", "time",
			internal + "cursor", internal + "dispatch", internal + "lanes", internal + "lease",
		},
		"cursor":   {"cmp", "fmt", "maps", "slices", "strconv", "strings", "time", internal + "lanes"},
		"dispatch": {"cmp", "container/heap", "math/bits", "slices", "time", internal + "lanes"},
		"idle":     {"time"},
		"lanes":    nil,
		"lease":    {"slices", "time", internal + "lanes"},
	} {
		files, err := filepath.Glob(filepath.Join("internal", name, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no files of %s: %v", name, err)
		}
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				checkPure(t, file, allowed)
			}
		}
	}
}

func checkPure(t *testing.T, name string, allowed []string) {
	source, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	file, err := parser.ParseFile(token.NewFileSet(), name, source, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range file.Imports {
		if path, _ := strconv.Unquote(i.Path.Value); !slices.Contains(allowed, path) {
			t.Errorf("%s imports %s", name, path)
		}
	}
	for _, word := range []string{"time.Now", "time.Since", "time.After", "time.Sleep", "time.NewT", "go func"} {
		if strings.Contains(string(source), word) {
			t.Errorf("%s has %s", name, word)
		}
	}
}
