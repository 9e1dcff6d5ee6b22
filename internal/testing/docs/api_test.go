package docs

import (
	"go/ast"
	"go/build"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// notPublic lists folders whose packages users do not import: programs, tests, their modules in testdata, release
// tools. These can change at any time, so api.txt does not list them.
var notPublic = []string{"bench", "cmd", "examples", "integration_test", "internal", "testdata", "tools"}

// apiPackages lists the packages whose exported names are in api.txt: all but those in notPublic.
func apiPackages(t *testing.T) (dirs []string) {
	err := filepath.WalkDir(".", func(dir string, e fs.DirEntry, err error) error {
		switch {
		case err != nil || !e.IsDir():
			return err
		case dir != "." && (strings.HasPrefix(e.Name(), ".") || slices.Contains(notPublic, e.Name())):
			return fs.SkipDir
		}
		if sources, err := filepath.Glob(filepath.Join(dir, "*.go")); err != nil || !slices.ContainsFunc(sources, isSource) {
			return err
		}
		dirs = append(dirs, filepath.ToSlash(dir))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

func isSource(file string) bool { return !strings.HasSuffix(file, "_test.go") }

// TestAPI fails when an exported name, field or signature is added, changed or removed. If intended, run `make api`.
func TestAPI(t *testing.T) {
	var api strings.Builder
	for _, dir := range apiPackages(t) {
		api.WriteString("# " + dir + "\n" + strings.Join(exported(t, dir), "\n") + "\n\n")
	}
	if os.Getenv("OUTBOX_WRITE_API") != "" {
		if err := os.WriteFile("api.txt", []byte(api.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	recorded, err := os.ReadFile("api.txt")
	if err != nil {
		t.Fatal(err)
	}
	was, is := strings.Split(string(recorded), "\n"), strings.Split(api.String(), "\n")
	for _, line := range was {
		if !slices.Contains(is, line) {
			t.Errorf("api.txt has, but the code has not:  %s", line)
		}
	}
	for _, line := range is {
		if !slices.Contains(was, line) {
			t.Errorf("the code has, but api.txt has not:  %s", line)
		}
	}
	if !t.Failed() && string(recorded) != api.String() {
		t.Error("api.txt differs from the code in its order, or repeats a line")
	}
}

// exported returns the exported declarations of a package without bodies, values and comments, sorted.
func exported(t *testing.T, dir string) (list []string) {
	pkg, err := build.ImportDir(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	files := token.NewFileSet()
	for _, name := range pkg.GoFiles {
		file, err := parser.ParseFile(files, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.FileExports(file)
		for _, decl := range file.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Recv != nil && !ast.IsExported(receiver(d)) {
					continue
				}
				d.Body = nil
				list = append(list, oneLine(source(t, files, d)))
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if value, ok := spec.(*ast.ValueSpec); ok {
						for _, name := range value.Names {
							list = append(list, d.Tok.String()+" "+name.Name)
						}
					} else if d.Tok == token.TYPE {
						list = append(list, source(t, files, &ast.GenDecl{Tok: d.Tok, Specs: []ast.Spec{spec}}))
					}
				}
			}
		}
	}
	slices.Sort(list)
	return list
}

// oneLine returns a signature on one line.
func oneLine(signature string) string {
	return strings.NewReplacer("( ", "(", ", )", ")").Replace(strings.Join(strings.Fields(signature), " "))
}

// receiver returns the name of the type that a method belongs to.
func receiver(d *ast.FuncDecl) string {
	of := d.Recv.List[0].Type
	if pointer, ok := of.(*ast.StarExpr); ok {
		of = pointer.X
	}
	name, _ := of.(*ast.Ident) // no generic type is exported
	return name.String()
}

func source(t *testing.T, files *token.FileSet, decl ast.Decl) string {
	var text strings.Builder
	if err := format.Node(&text, files, decl); err != nil {
		t.Fatal(err)
	}
	return text.String()
}
