package docs

import (
	"go/ast"
	"path"
	"slices"
	"strings"
	"testing"
)

// TestAliasesShowTheirValues: where an exported constant or error is another name for one of an internal package, which
// go doc does not show, the comment behind it has the value, or its beginning.
func TestAliasesShowTheirValues(t *testing.T) {
	values := map[string]string{}
	everyPackage(t, func(dir string, files []*ast.File) {
		declared(files, func(spec *ast.ValueSpec, _ *ast.CommentGroup) {
			for i, name := range spec.Names {
				if i >= len(spec.Values) {
					continue
				}
				value := literal(spec.Values[i])
				if number, ok := spec.Values[i].(*ast.BasicLit); ok && value == "" {
					value = number.Value
				}
				values[path.Base(dir)+"."+name.Name] = value
			}
		})
	})
	aliases := 0
	for _, dir := range apiPackages(t) {
		declared(sourcesOf(t, dir), func(spec *ast.ValueSpec, _ *ast.CommentGroup) {
			for i, name := range spec.Names {
				if i >= len(spec.Values) || !name.IsExported() {
					continue
				}
				alias, _ := spec.Values[i].(*ast.SelectorExpr)
				if alias == nil || values[lastName(alias.X)+"."+alias.Sel.Name] == "" {
					continue
				}
				aliases++
				value := values[lastName(alias.X)+"."+alias.Sel.Name]
				says, _, _ := strings.Cut(strings.TrimSpace(spec.Comment.Text()), "; ")
				if says = strings.Trim(strings.TrimSuffix(says, "…"), `"`); says == "" || !strings.HasPrefix(value, says) {
					t.Errorf("%s: the comment behind %s = %s.%s must begin with its value, %q", dir, name.Name, lastName(alias.X),
						alias.Sel.Name, value)
				}
			}
		})
	}
	if aliases < 15 || !slices.Contains(apiPackages(t), ".") {
		t.Errorf("only %d aliases were found", aliases)
	}
}
