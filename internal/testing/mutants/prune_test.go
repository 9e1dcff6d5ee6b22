package mutants

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// decl is a top-level declaration of a test file.
type decl struct {
	file  string
	from  int // offsets in the file, including the comment
	to    int
	names []string // declared names; for a method its receiver's type
	// method is the name of a method that only selectors need; "" = not a method, or exported, like methods of interfaces.
	method string
	uses   map[string]bool
	picks  map[string]bool // names that it selects, or declares in an interface
}

// namedTest finds tests that others run by name, in a child process.
var namedTest = regexp.MustCompile(`\bTest\w+`)

// needed returns the test files of a package, each with only the declarations that these tests need, directly or not. A
// file without any is empty. An import stays if its name is used; names are guessed from paths.
func needed(pkg string, tests []string) (map[string][]byte, error) {
	files, err := filepath.Glob(filepath.Join(pkg, "*_test.go"))
	if err != nil {
		return nil, err
	}
	set := token.NewFileSet()
	var decls []*decl
	parsed, texts := map[string]*ast.File{}, map[string][]byte{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		file, err := parser.ParseFile(set, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		parsed[name], texts[name] = file, text
		for _, d := range file.Decls {
			if decl := newDecl(set, name, d); decl != nil {
				decls = append(decls, decl)
			}
		}
	}
	keep := closure(decls, tests)
	for _, test := range tests {
		if !slices.ContainsFunc(decls, func(d *decl) bool { return slices.Contains(d.names, test) }) {
			return nil, fmt.Errorf("%s has no %s", pkg, test)
		}
	}
	kept := map[string][]byte{}
	for name, text := range texts {
		kept[name] = cut(set, parsed[name], text, decls, keep)
	}
	return kept, nil
}

func newDecl(set *token.FileSet, file string, d ast.Decl) *decl {
	found := &decl{file: file, uses: map[string]bool{}, picks: map[string]bool{}}
	from := d.Pos()
	switch d := d.(type) {
	case *ast.FuncDecl:
		found.names = []string{d.Name.Name}
		if d.Recv != nil {
			found.names = []string{receiver(d.Recv.List[0].Type)}
			if !d.Name.IsExported() {
				found.method = d.Name.Name
			}
		}
		if d.Doc != nil {
			from = d.Doc.Pos()
		}
	case *ast.GenDecl:
		if d.Tok == token.IMPORT {
			return nil
		}
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				found.names = append(found.names, spec.Name.Name)
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					found.names = append(found.names, name.Name)
				}
			}
		}
		if d.Doc != nil {
			from = d.Doc.Pos()
		}
	}
	found.from, found.to = set.Position(from).Offset, set.Position(d.End()).Offset
	var inspect func(n ast.Node) bool
	inspect = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr: // a selected name is a field, a method, or in another package
			found.picks[n.Sel.Name] = true
			ast.Inspect(n.X, inspect)
			return false
		case *ast.Field: // so are field names
			for _, name := range n.Names {
				found.picks[name.Name] = true
			}
			ast.Inspect(n.Type, inspect)
			return false
		case *ast.Ident:
			found.uses[n.Name] = true
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				for _, test := range namedTest.FindAllString(n.Value, -1) {
					found.uses[test] = true
				}
			}
		}
		return true
	}
	ast.Inspect(d, inspect)
	return found
}

func receiver(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.IndexListExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	}
	return ""
}

// closure returns the declarations that the tests use, and the init functions and assertions of files with any.
func closure(decls []*decl, tests []string) map[*decl]bool {
	named, unnamed := map[string][]*decl{}, map[string][]*decl{}
	for _, d := range decls {
		for _, name := range d.names {
			if name == "init" || name == "_" {
				unnamed[d.file] = append(unnamed[d.file], d)
				continue
			}
			named[name] = append(named[name], d)
		}
	}
	keep, picked := map[*decl]bool{}, map[string]bool{}
	todo := slices.Clone(named["TestMain"])
	for _, test := range tests {
		todo = append(todo, named[test]...)
	}
	var later []*decl // methods that nothing has selected so far
	for {
		if len(todo) == 0 {
			ready := func(d *decl) bool { return picked[d.method] }
			if !slices.ContainsFunc(later, ready) {
				break
			}
			todo, later = later, nil
		}
		d := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		switch {
		case keep[d]:
			continue
		case d.method != "" && !picked[d.method]:
			later = append(later, d)
			continue
		}
		keep[d] = true
		todo = append(todo, unnamed[d.file]...)
		for used := range d.uses {
			todo = append(todo, named[used]...)
		}
		for name := range d.picks {
			picked[name] = true
		}
	}
	return keep
}

// cut removes all other declarations, and imports that only they used.
func cut(set *token.FileSet, file *ast.File, text []byte, decls []*decl, keep map[*decl]bool) []byte {
	name := set.Position(file.Pos()).Filename
	text = bytes.Clone(text)
	uses, some := map[string]bool{}, false
	for _, d := range decls {
		switch {
		case d.file != name:
		case keep[d]:
			some = true
			for used := range d.uses {
				uses[used] = true
			}
		default:
			blank(text[d.from:d.to])
		}
	}
	if !some {
		return nil
	}
	for _, spec := range file.Imports {
		if name := importName(spec); name != "_" && !uses[name] {
			blank(text[set.Position(spec.Pos()).Offset:set.Position(spec.End()).Offset])
		}
	}
	return text
}

func importName(spec *ast.ImportSpec) string {
	if spec.Name != nil {
		return spec.Name.Name
	}
	p := strings.Trim(spec.Path.Value, `"`)
	base := path.Base(p)
	if version.MatchString(base) {
		base = path.Base(path.Dir(p))
	}
	base, _, _ = strings.Cut(base, ".")
	return strings.TrimSuffix(strings.TrimPrefix(base, "go-"), "-go")
}

var version = regexp.MustCompile(`^v\d+$`)

// blank keeps line breaks, so that failures have the right line numbers.
func blank(text []byte) {
	for i, c := range text {
		if c != '\n' {
			text[i] = ' '
		}
	}
}
