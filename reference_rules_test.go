package outbox

import (
	"fmt"
	"go/ast"
	"path/filepath"
	"strings"
	"testing"
)

// brokenRules lists the rules that make mutants breaks and that no schedule of the model shows. It reads the tables of
// forwarder/internal/mutants.
func brokenRules(t *testing.T) string {
	files, err := filepath.Glob("forwarder/internal/mutants/table_*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("tables of mutants %v: %v", files, err)
	}
	var missed strings.Builder
	all, struck := 0, 0
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
			all++
			if fields["Strike"] != "" {
				struck++
			}
			if missing := fields["Missing"]; missing != "" {
				fmt.Fprintf(&missed, "| %s: %s | %s |\n", fields["Name"], fields["Breaks"], missing)
			}
			return false
		})
	}
	if all < 50 {
		t.Errorf("only %d rules were found", all)
	}
	return fmt.Sprintf("\nOf the %d rules of the forwarder that `make mutants` breaks, one at a time, schedules show\n"+
		"all but %d that are struck, each with its reason, and these:\n\n"+
		"| what is so when the rule is broken | what schedules lack to show it |\n|---|---|\n%s",
		all, struck, missed.String())
}
