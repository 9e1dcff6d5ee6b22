package docs

import (
	"fmt"
	"go/ast"
	"path/filepath"
	"testing"
)

// mutantsOf reads the tables of forwarder/internal/mutants: of each mutant its fields, by its name.
func mutantsOf(t *testing.T) map[string]map[string]string {
	files, err := filepath.Glob("forwarder/internal/mutants/table_*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("tables of mutants %v: %v", files, err)
	}
	all := map[string]map[string]string{}
	for _, file := range files {
		ast.Inspect(parsed(t, file), func(n ast.Node) bool {
			lit, ok := n.(*ast.CompositeLit)
			if !ok {
				return true
			}
			fields := map[string]string{}
			for _, e := range lit.Elts {
				if kv, ok := e.(*ast.KeyValueExpr); ok {
					fields[lastName(kv.Key)] = literal(kv.Value)
				}
			}
			if fields["Name"] == "" {
				return true
			}
			all[fields["Name"]] = fields
			return false
		})
	}
	if len(all) < 50 {
		t.Errorf("only %d mutants were found", len(all))
	}
	return all
}

// brokenRules counts the rules that make mutants breaks.
func brokenRules(mutants map[string]map[string]string) string {
	struck := 0
	for _, m := range mutants {
		if m["Strike"] != "" {
			struck++
		}
	}
	return fmt.Sprintf("\nOf the %d rules of the forwarder that `make mutants` breaks, one at a time, schedules or\n"+
		"tests of its state show all but %d that are struck, each with its reason.\n", len(mutants), struck)
}
