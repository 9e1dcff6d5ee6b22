package integration_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOperationsStatements runs the statements of docs/operations.md, so that they fit the tables.
func TestOperationsStatements(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	h := newPgxHandle(t, newMigratedDatabase(t))
	n := 0
	for _, block := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		for _, statement := range strings.Split(block[1], ";\n") {
			if strings.TrimSpace(statement) != "" {
				h.exec(t, statement)
				n++
			}
		}
	}
	require.Greater(t, n, 5)
}
