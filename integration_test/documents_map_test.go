package integration_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestFilesAreFoundByTheirPromise: each file begins with one prefix of the map in doc.go, and each prefix has a file.
func TestFilesAreFoundByTheirPromise(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	used := map[string]bool{}
	for _, line := range regexp.MustCompile(`(?m)^//   - ([a-z_]+_): \S`).FindAllStringSubmatch(string(source), -1) {
		assert.NotContains(t, used, line[1], "doc.go has it twice")
		used[line[1]] = false
	}
	require.NotEmpty(t, used)
	for _, file := range files {
		var of []string
		for prefix := range used {
			if strings.HasPrefix(file, prefix) {
				of, used[prefix] = append(of, prefix), true
			}
		}
		assert.Len(t, of, 1, "%s: begin its name with one prefix of doc.go", file)
	}
	for prefix, is := range used {
		assert.True(t, is, "doc.go: no file begins with %s", prefix)
	}
}
