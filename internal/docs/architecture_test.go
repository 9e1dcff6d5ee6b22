package docs

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/doc"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const ourModule = "github.com/millrace-go/watermill-outbox"

// architecture is docs/reference/architecture.md, whose table of packages is made anew from the tree.
func architecture(t *testing.T) string {
	page := read(t, "docs/reference/architecture.md")
	const begin, end = "<!-- packages -->\n", "<!-- end of packages -->\n"
	before, rest, ok := strings.Cut(page, begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("docs/reference/architecture.md has no lines %q and %q", begin, end)
	}
	return before + begin + packageTable(t) + end + after
}

// packageTable has a row for each package of all modules but the examples.
func packageTable(t *testing.T) string {
	var b strings.Builder
	b.WriteString("| package | what it is for | imports of ours |\n|---|---|---|\n")
	err := filepath.WalkDir(".", func(dir string, e fs.DirEntry, err error) error {
		switch {
		case err != nil || !e.IsDir():
			return err
		case dir != "." && (strings.HasPrefix(e.Name(), ".") || e.Name() == "testdata" || e.Name() == "examples"):
			return fs.SkipDir
		}
		dir = filepath.ToSlash(dir)
		if files := sourcesOf(t, dir); len(files) > 0 {
			purpose := purposeOf(files)
			if purpose == "" {
				t.Errorf("package %s has no comment that says what it is for", dir)
			}
			name := cmp.Or(strings.TrimPrefix(dir, "."), "outbox")
			fmt.Fprintf(&b, "| [%s](../../%s) | %s | %s |\n", name, dir, purpose, importsOfOurs(files))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// purposeOf is the first sentence of the package's comment, without the name.
func purposeOf(files []*ast.File) string {
	for _, file := range files {
		if text := new(doc.Package).Synopsis(file.Doc.Text()); text != "" {
			text = strings.TrimPrefix(strings.TrimPrefix(text, "Package "), "Command ")
			return strings.ReplaceAll(text, "|", `\|`)
		}
	}
	return ""
}

// importsOfOurs are the packages of this repository that a package imports, by their shortest names.
func importsOfOurs(files []*ast.File) string {
	var list []string
	for _, file := range files {
		for _, spec := range file.Imports {
			name, _ := strconv.Unquote(spec.Path.Value)
			switch rel, ours := strings.CutPrefix(name, ourModule+"/"); {
			case name == ourModule:
				list = append(list, "outbox")
			case ours && strings.Contains(rel, "internal/"):
				list = append(list, path.Base(rel))
			case ours:
				list = append(list, rel)
			}
		}
	}
	slices.Sort(list)
	return strings.Join(slices.Compact(list), ", ")
}
