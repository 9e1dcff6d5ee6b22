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

// TestRoomsArePure: what decides must not know what it decides about: no clock, goroutine, lock, context, logger,
// database, nor one of the others (but machine, which joins them). (time is for its types: now is an argument.)
func TestRoomsArePure(t *testing.T) {
	const rooms = "github.com/millrace-go/watermill-outbox/forwarder/internal/"
	for room, allowed := range map[string][]string{
		"board":   {"cmp", "container/heap", "math/bits", "slices", "time", rooms + "lanes"},
		"lanes":   nil,
		"machine": {"maps", "math", "slices", "time", rooms + "board", rooms + "lanes", rooms + "lease", rooms + "window"},
		"lease":   {"slices", "time", rooms + "lanes"},
		"window":  {"cmp", "fmt", "maps", "slices", "strconv", "strings", "time", rooms + "lanes"},
	} {
		files, err := filepath.Glob(filepath.Join("internal", room, "*.go"))
		if err != nil || len(files) < 2 {
			t.Fatalf("%s has %d files: %v", room, len(files), err)
		}
		for _, name := range files {
			if !strings.HasSuffix(name, "_test.go") {
				checkPure(t, name, allowed)
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
