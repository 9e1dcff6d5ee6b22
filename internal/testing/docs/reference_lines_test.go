package docs

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// logLines finds the lines at levels info and error.
func logLines(t *testing.T) (list []printed) {
	everyPackage(t, func(dir string, files []*ast.File) {
		texts := map[string]string{}
		declared(files, func(spec *ast.ValueSpec, _ *ast.CommentGroup) {
			for i, name := range spec.Names {
				if i < len(spec.Values) {
					texts[name.Name] = literal(spec.Values[i])
				}
			}
		})
		for _, file := range files {
			above := map[int]*ast.CommentGroup{}
			for _, group := range file.Comments {
				above[positions.Position(group.End()).Line+1] = group
			}
			add := func(n ast.Node, level, text string) {
				p := printed{dir: dir, level: level, text: text}
				_, p.cause, p.cure = causeAndCure(above[positions.Position(n.Pos()).Line])
				p.fromText(2)
				list = append(list, p)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CompositeLit: // a trouble.RetryLog or trouble.Breaker
					if what, then := whatOf(n); what != "" {
						add(n, "Error", what+" failed: "+then)
						add(n, "Info", what+" works again")
					}
				case *ast.CallExpr:
					if _, ok := n.Fun.(*ast.Ident); ok && len(n.Args) == 2 && isFields(n.Args[1]) && literal(n.Args[0]) != "" {
						add(n, "Info", literal(n.Args[0])) // a method of a logger, chosen earlier
					}
					method, ok := n.Fun.(*ast.SelectorExpr)
					if !ok || len(n.Args) < 2 || method.Sel.Name != "Error" && method.Sel.Name != "Info" {
						break
					}
					text := literal(n.Args[0])
					if name, ok := n.Args[0].(*ast.Ident); ok {
						text = texts[name.Name]
					}
					if text != "" {
						add(n, method.Sel.Name, text)
					} else if strings.EqualFold(lastName(method.X), "logger") && dir != "internal/trouble" {
						t.Errorf("%s: the text of a log line is not a constant, so searches do not find it", positions.Position(n.Pos()))
					}
				}
				return true
			})
		}
	})
	list = sorted(list)
	complete(t, slices.DeleteFunc(slices.Clone(list), func(p printed) bool {
		return p.level == "Info" && !strings.HasPrefix(p.text, "warning: ")
	}))
	return list
}

// isFields reports whether an argument is a watermill.LogFields.
func isFields(e ast.Expr) bool {
	fields, ok := e.(*ast.CompositeLit)
	return ok && lastName(fields.Type) == "LogFields"
}

// whatOf returns the activity of a trouble.RetryLog or trouble.Breaker, and what follows its failure.
func whatOf(n *ast.CompositeLit) (what, then string) {
	kind, ok := n.Type.(*ast.SelectorExpr)
	if !ok || lastName(kind.X) != "trouble" {
		return "", ""
	}
	if then = "retrying until it works"; lastName(kind) == "Breaker" {
		then = "the database is skipped, for longer each time"
	}
	for _, e := range n.Elts {
		if field, ok := e.(*ast.KeyValueExpr); ok && lastName(field.Key) == "What" {
			return literal(field.Value), then
		}
	}
	return "", ""
}
