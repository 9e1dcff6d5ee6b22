package integration_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPromises fails if a promise of the README, a kind of finding or a requirement of the queue is no longer shown by
// make test, because its tests are gone or run only in make test-rest; or if integration_test/promises.md is out of
// date.
func TestPromises(t *testing.T) {
	t.Parallel()
	const file = "promises.md"
	want := promisesPage(t)
	if os.Getenv("OUTBOX_WRITE_PROMISES") != "" {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
	}
	is, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, want, string(is), "run make promises")
}

func promisesPage(t *testing.T) string {
	tests := testsByTier(t)
	var b strings.Builder
	b.WriteString(`# Promises and the tests that show them

For contributors who change, move or remove a test. ` + "`make promises`" + ` writes this page from the README,
[reliability](../docs/reference/reliability.md), package admin and the tests. It names tests that ` + "`make test`" + ` runs; a
promise without one fails.

`)
	row := func(of string, names []string) {
		names = slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(names))), func(name string) bool {
			return !tests[name]
		})
		assert.NotEmpty(t, names, "make test does not show: %s", of)
		fmt.Fprintf(&b, "| %s | %s |\n", of, strings.Join(names, ", "))
	}
	b.WriteString("| promise of the README | tests |\n|---|---|\n")
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	proofs, err := os.ReadFile("../docs/reference/reliability.md")
	require.NoError(t, err)
	promised := regexp.MustCompile(`(?m)^\| \*\*\[(.+?)\]\(docs/reference/reliability\.md#`).
		FindAllStringSubmatch(string(readme), -1)
	require.NotEmpty(t, promised)
	for _, promise := range promised {
		_, section, found := strings.Cut(string(proofs), "\n## "+promise[1]+"\n")
		require.True(t, found, "reliability.md has no section %s", promise[1])
		section, _, _ = strings.Cut(section, "\n## ")
		var names []string
		for _, link := range regexp.MustCompile(`(?m)^\| \[(Test\w+)\]`).FindAllStringSubmatch(section, -1) {
			names = append(names, link[1])
		}
		row(promise[1], names)
	}

	b.WriteString("\n| finding of Doctor | tests |\n|---|---|\n")
	shown := testsOfFindings(t)
	for _, kind := range kindsOfFindings(t) {
		row("`"+kind+"`", shown[kind])
	}

	b.WriteString("\n| requirement of the [queue](ibx.md) | tests |\n|---|---|\n")
	for _, section := range ibxSections {
		for _, r := range section.requirements {
			if r.verdict == held || r.verdict == differs {
				names := strings.Fields(r.shownBy)
				if r.test != nil {
					names = append(names, "TestIBX")
				}
				row(fmt.Sprintf("IBX-%03d", r.number), names)
			}
		}
	}
	return b.String()
}

// testsByTier returns all tests of the repository: true if make test runs them.
func testsByTier(t *testing.T) map[string]bool {
	t.Helper()
	tests := map[string]bool{}
	for _, file := range goFiles(t, "..", "_test.go") {
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				tests[f.Name.Name] = tests[f.Name.Name] || !slices.ContainsFunc(f.Body.List, leavesToRest)
			}
		}
	}
	return tests
}

// leavesToRest reports whether a statement calls extended or skips with -short.
func leavesToRest(s ast.Stmt) bool {
	switch s := s.(type) {
	case *ast.ExprStmt:
		call, ok := s.X.(*ast.CallExpr)
		return ok && isNamed(call.Fun, "extended")
	case *ast.IfStmt:
		call, ok := s.Cond.(*ast.CallExpr)
		return ok && isNamed(call.Fun, "Short")
	}
	return false
}

func isNamed(e ast.Expr, name string) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name == name
	case *ast.SelectorExpr:
		return e.Sel.Name == name
	}
	return false
}

// kindsOfFindings returns the keys of kinds in package admin, except the names of checks with several kinds.
func kindsOfFindings(t *testing.T) (kinds []string) {
	t.Helper()
	found, listed := map[string]bool{}, []string{}
	for _, file := range goFiles(t, "../admin", ".go") {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if isNamed(n.Fun, "find") || isNamed(n.Fun, "findOf") {
					for _, arg := range n.Args {
						found[stringOf(arg)] = true
					}
				}
			case *ast.ValueSpec:
				if len(n.Values) == 1 && n.Names[0].Name == "kinds" {
					for _, e := range n.Values[0].(*ast.CompositeLit).Elts {
						listed = append(listed, stringOf(e.(*ast.KeyValueExpr).Key))
					}
				}
			}
			return true
		})
	}
	require.NotEmpty(t, listed)
	return slices.DeleteFunc(listed, func(kind string) bool { return !found[kind] })
}

// testsOfFindings returns the tests of this package that expect a finding, themselves or in a function that they call.
func testsOfFindings(t *testing.T) map[string][]string {
	t.Helper()
	kinds, calls, injected := map[string]map[string]bool{}, map[string]map[string]bool{}, map[string]bool{}
	for _, file := range goFiles(t, ".", "_test.go") {
		for _, decl := range file.Decls {
			name := ""
			switch d := decl.(type) {
			case *ast.FuncDecl:
				name = d.Name.Name
			case *ast.GenDecl:
				if spec, ok := d.Specs[0].(*ast.ValueSpec); ok {
					name = spec.Names[0].Name
				}
			}
			if name == "" {
				continue
			}
			if kinds[name] == nil {
				kinds[name], calls[name] = map[string]bool{}, map[string]bool{}
			}
			ast.Inspect(decl, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.Ident:
					calls[name][n.Name] = true
				case *ast.CallExpr: // ails(t, h, "backlog"), or find of TestDoctorOfLeaves
					if (isNamed(n.Fun, "ails") || isNamed(n.Fun, "find")) && len(n.Args) > 2 {
						kinds[name][stringOf(n.Args[2])] = true
					}
				case *ast.IndexExpr: // findings(t, h)["backlog"]
					if call, ok := n.X.(*ast.CallExpr); ok && isNamed(call.Fun, "findings") || isNamed(n.X, "found") {
						kinds[name][stringOf(n.Index)] = true
					}
				case *ast.BinaryExpr: // f.Check == "backlog"
					if isNamed(n.X, "Check") {
						kinds[name][stringOf(n.Y)] = true
					}
				case *ast.CompositeLit: // fault{check: "backlog", always: true}, or a case of a test's own table
					check, always := "", false
					for _, e := range n.Elts {
						if kv, ok := e.(*ast.KeyValueExpr); ok {
							if isNamed(kv.Key, "check") {
								check = stringOf(kv.Value)
							}
							always = always || isNamed(kv.Key, "always") && isNamed(kv.Value, "true")
						}
					}
					if strings.HasPrefix(name, "Test") {
						kinds[name][check] = true
					} else {
						injected[check] = injected[check] || always
					}
				}
				return true
			})
		}
	}
	kinds["TestNightOfFaults"] = injected
	shown := map[string][]string{}
	for name := range kinds {
		if strings.HasPrefix(name, "Test") {
			seen := map[string]bool{}
			var visit func(string)
			visit = func(f string) {
				if seen[f] || kinds[f] == nil {
					return
				}
				seen[f] = true
				for kind, is := range kinds[f] {
					if is {
						shown[kind] = append(shown[kind], name)
					}
				}
				for called := range calls[f] {
					if !strings.HasPrefix(called, "Test") {
						visit(called)
					}
				}
			}
			visit(name)
		}
	}
	return shown
}

func stringOf(e ast.Expr) string {
	if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
		s, _ := strconv.Unquote(l.Value)
		return s
	}
	return ""
}

// goFiles parses the files below a folder whose names have this suffix.
func goFiles(t *testing.T, root, suffix string) []*ast.File {
	t.Helper()
	files := map[string]*ast.File{}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && path != root && (strings.HasPrefix(e.Name(), ".") && e.Name() != ".." || e.Name() == "uitest"):
			return fs.SkipDir
		case e.IsDir() || !strings.HasSuffix(path, suffix):
			return nil
		}
		files[path], err = parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		return err
	})
	require.NoError(t, err)
	return slices.Collect(maps.Values(files))
}
