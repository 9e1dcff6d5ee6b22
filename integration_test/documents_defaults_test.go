package integration_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// quantity is a number of the code, or a time in it.
type quantity struct {
	n    float64 // nanoseconds of a time
	time bool
}

func quantityOf(t *testing.T, n, unit string) quantity {
	t.Helper()
	f, err := strconv.ParseFloat(strings.ReplaceAll(n, ",", ""), 64)
	require.NoError(t, err)
	if u := unitsOfTime[strings.TrimSuffix(unit, "s")]; u != 0 {
		return quantity{f * float64(u), true}
	}
	if u := unitsOfTime[unit]; u != 0 {
		return quantity{f * float64(u), true}
	}
	return quantity{f, false}
}

// plainName makes connect_timeout and connectTimeout one name.
func plainName(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "")) }

// defaultsOfTheCode are the values that fields and constants are given, or compared with, by name alone and with the
// package.
func defaultsOfTheCode(t *testing.T) map[string]map[quantity]bool {
	t.Helper()
	all := map[string]map[quantity]bool{}
	require.NoError(t, filepath.WalkDir("..", func(dir string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		if slices.Contains([]string{".cache", ".git", "integration_test", "bench", "examples"}, entry.Name()) {
			return fs.SkipDir
		}
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		var parsed []*ast.File
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			if err != nil {
				return err
			}
			parsed = append(parsed, f)
		}
		d := declarations{pkg: filepath.Base(dir), consts: map[string]quantity{}, all: all}
		for range 2 { // a constant may be of one that comes later
			for _, f := range parsed {
				ast.Inspect(f, d.see)
			}
		}
		return err
	}))
	require.Contains(t, all["forwarder.leasettl"], quantity{float64(10 * time.Second), true})
	return all
}

// declarations are those of a package.
type declarations struct {
	pkg    string
	consts map[string]quantity
	all    map[string]map[quantity]bool
}

func (d declarations) see(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.ValueSpec:
		for i, name := range n.Names {
			if i < len(n.Values) {
				if v, ok := d.eval(n.Values[i]); ok {
					d.consts[name.Name] = v
				}
				d.add(name, n.Values[i])
			}
		}
	case *ast.AssignStmt:
		if len(n.Lhs) == len(n.Rhs) {
			for i := range n.Lhs {
				d.add(n.Lhs[i], n.Rhs[i])
			}
		}
	case *ast.BinaryExpr:
		d.add(n.X, n.Y)
	case *ast.CallExpr:
		if f := types.ExprString(n.Fun); (f == "fill" || f == "inbound.Fill") && len(n.Args) == 2 {
			if field, ok := n.Args[0].(*ast.UnaryExpr); ok {
				d.add(field.X, n.Args[1])
			}
		}
	}
	return true
}

func (d declarations) add(to, expr ast.Expr) {
	var name string
	switch to := to.(type) {
	case *ast.Ident:
		name = to.Name
	case *ast.SelectorExpr:
		name = to.Sel.Name
	default:
		return
	}
	exprs := []ast.Expr{expr}
	ast.Inspect(expr, func(n ast.Node) bool { // Backoff.WithDefaults
		if call, ok := n.(*ast.CallExpr); ok {
			if f, ok := call.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "WithDefaults" {
				exprs = call.Args
			}
		}
		return true
	})
	for _, e := range exprs {
		if v, ok := d.eval(e); ok {
			for _, key := range []string{plainName(name), d.pkg + "." + plainName(name)} {
				if d.all[key] == nil {
					d.all[key] = map[quantity]bool{}
				}
				d.all[key][v] = true
			}
		}
	}
}

// eval works out an expression of numbers, units of time and constants.
func (d declarations) eval(expr ast.Expr) (quantity, bool) {
	switch e := expr.(type) {
	case *ast.BasicLit:
		n, err := strconv.ParseFloat(strings.ReplaceAll(e.Value, "_", ""), 64)
		return quantity{n, false}, err == nil
	case *ast.Ident:
		v, ok := d.consts[e.Name]
		return v, ok
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok && x.Name == "time" {
			unit := unitsOfTime[strings.ToLower(e.Sel.Name)]
			if e.Sel.Name == "Millisecond" {
				unit = time.Millisecond
			}
			return quantity{float64(unit), true}, unit != 0
		}
	case *ast.BinaryExpr:
		x, ok := d.eval(e.X)
		y, too := d.eval(e.Y)
		switch e.Op {
		case token.MUL:
			return quantity{x.n * y.n, x.time || y.time}, ok && too
		case token.SHL:
			return quantity{x.n * math.Exp2(y.n), false}, ok && too
		}
	}
	return quantity{}, false
}
