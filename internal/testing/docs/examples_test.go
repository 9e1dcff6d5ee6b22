package docs

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// notRun matches the explanation in a package comment why none of its examples is run.
var notRun = regexp.MustCompile(`examples? (is|are) compiled and not run: `)

// TestExamples: pkg.go.dev first shows an example of each package, with its output.
func TestExamples(t *testing.T) {
	t.Parallel()
	for _, dir := range apiPackages(t) {
		tests, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		var files []*ast.File
		for _, name := range tests {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, file)
		}
		all, run := doc.Examples(files...), false
		for _, example := range all {
			run = run || example.Output != ""
		}
		said := false
		for _, file := range sourcesOf(t, dir) {
			said = said || notRun.MatchString(strings.Join(strings.Fields(file.Doc.Text()), " "))
		}
		switch {
		case len(all) == 0:
			t.Errorf("%s has no Example: write one in example_test.go", dir)
		case !run && !said:
			t.Errorf("%s has no Example with Output: write one, or say in doc.go why it is compiled and not run", dir)
		case run && said:
			t.Errorf("%s has an Example with Output, but its doc.go says that none is run", dir)
		}
	}
}
