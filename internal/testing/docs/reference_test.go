package docs

import (
	"fmt"
	"go/ast"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestReference compares docs/reference/configuration.md and errors.md with the code; `make reference` writes them.
func TestReference(t *testing.T) {
	for name, want := range map[string]string{
		"configuration.md": configuration(t), "errors.md": errorsAndLogs(t),
	} {
		file := filepath.Join("docs", "reference", name)
		if os.Getenv("OUTBOX_WRITE_REFERENCE") != "" {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if is, err := os.ReadFile(file); err != nil || string(is) != want {
			t.Errorf("%s differs from the code (%v): run make reference", file, err)
		}
	}
}

// sourcesOf parses the files of a package that are not tests.
func sourcesOf(t *testing.T, dir string) (files []*ast.File) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.DeleteFunc(names, func(name string) bool { return !isSource(name) }) {
		files = append(files, parsed(t, name))
	}
	return files
}

// declared calls each for all specs of a package, with their comments.
func declared[S ast.Spec](files []*ast.File, each func(spec S, doc *ast.CommentGroup)) {
	for _, file := range files {
		for _, decl := range file.Decls {
			if d, ok := decl.(*ast.GenDecl); ok {
				for _, spec := range d.Specs {
					if s, ok := spec.(S); ok {
						each(s, d.Doc)
					}
				}
			}
		}
	}
}

// importName returns a package's name in code, with its folder if ambiguous.
func importName(dir string) string {
	if dir == "." {
		return "outbox"
	}
	return path.Base(dir)
}

// onOneLine writes a comment on one line.
func onOneLine(docs ...*ast.CommentGroup) string {
	for _, doc := range docs {
		if text := strings.Join(strings.Fields(doc.Text()), " "); text != "" {
			return text
		}
	}
	return ""
}

func configuration(t *testing.T) string {
	var b strings.Builder
	b.WriteString(`# Configuration

Every field that a service sets, with its default, written by ` + "`make reference`" + `. The
[Go reference](https://pkg.go.dev/github.com/millrace-go/watermill-outbox) has more, and package ` + "`admin`" + `.
A field without a named default is empty or off by default; -1 disables a field where that makes sense. The fields of
the parts of ` + "`middleware.StackConfig`" + ` are listed once.
`)
	for _, dir := range apiPackages(t) {
		if dir == "admin" { // of operators
			continue
		}
		declared(sourcesOf(t, dir), func(spec *ast.TypeSpec, _ *ast.CommentGroup) {
			fields, ok := spec.Type.(*ast.StructType)
			name := spec.Name.Name
			if !ok || !spec.Name.IsExported() || !strings.HasSuffix(name, "Config") && name != "TxOptions" ||
				name == "TopicReaderConfig" { // of operators, too
				return
			}
			fmt.Fprintf(&b, "\n## %s.%s\n\n", importName(dir), name)
			for _, field := range fields.Fields.List {
				var names []string
				for _, name := range field.Names {
					if name.IsExported() {
						names = append(names, "`"+name.Name+"`")
					}
				}
				if len(field.Names) == 0 {
					names = append(names, "`"+embedded(field.Type)+"`")
				}
				if text := onOneLine(field.Doc, field.Comment); len(names) > 0 && text != "" {
					fmt.Fprintf(&b, "- %s: %s\n", strings.Join(names, ", "), inShort(withoutNames(text, names)))
				}
			}
		})
	}
	return b.String()
}

// inShort keeps the first sentence of a comment, and the sentences about requirements and defaults.
func inShort(text string) string {
	sentences := strings.SplitAfter(text, ". ")
	short := sentences[:1]
	for _, s := range sentences[1:] {
		if strings.HasPrefix(s, "Required") || strings.HasPrefix(s, "Default") {
			short = append(short, s)
		}
	}
	text = strings.TrimSpace(strings.Join(short, ""))
	return strings.NewReplacer("; default none.", ".", "; default off.",
		".").Replace(text) // as the page explains at its beginning
}

// withoutNames removes the names at the beginning of a comment.
func withoutNames(text string, names []string) string {
	list := strings.Join(names, ", ")
	if n := len(names) - 1; n > 0 {
		list = strings.Join(names[:n], ", ") + " and " + names[n]
	}
	for _, begin := range []string{list, names[0]} {
		if rest, ok := strings.CutPrefix(text, strings.ReplaceAll(begin, "`", "")+" "); ok {
			rest = strings.TrimPrefix(strings.TrimPrefix(rest, "is "), "are ")
			return strings.TrimPrefix(rest, "the number of ")
		}
	}
	return text
}

func embedded(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return embedded(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return "?"
}

// everyPackage calls each for all packages that a service may run, sorted by name.
func everyPackage(t *testing.T, each func(dir string, files []*ast.File)) {
	skipped := slices.DeleteFunc(slices.Clone(notPublic), func(name string) bool {
		return name == "internal" || name == "cmd"
	})
	skipped = append(skipped, "services", "uitest", "pictures", "release", "outboxtest")
	err := filepath.WalkDir(".", func(dir string, e fs.DirEntry, err error) error {
		switch {
		case err != nil || !e.IsDir():
			return err
		case dir != "." && (strings.HasPrefix(e.Name(), ".") || slices.Contains(skipped, e.Name())):
			return fs.SkipDir
		}
		if files := sourcesOf(t, dir); len(files) > 0 {
			each(filepath.ToSlash(dir), files)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
