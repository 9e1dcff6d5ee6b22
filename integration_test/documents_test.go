package integration_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// documents returns the pages for users, by their path from the root.
func documents(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "examples/*.md", "publisher/*/*.md"} {
		files, err := filepath.Glob(filepath.Join("..", pattern))
		require.NoError(t, err)
		for _, file := range files {
			content, err := os.ReadFile(file)
			require.NoError(t, err)
			pages[filepath.ToSlash(strings.TrimPrefix(file, ".."+string(filepath.Separator)))] = string(content)
		}
	}
	require.Contains(t, pages, "README.md")
	require.Contains(t, pages, "docs/run/sql.md")
	return pages
}

// everyTest returns the names of all tests and benchmarks of the repository.
func everyTest(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Example|Benchmark)\w*)\(`)
	require.NoError(t, filepath.WalkDir("..", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && entry.Name() == ".cache" {
			return fs.SkipDir
		}
		if !strings.HasSuffix(file, "_test.go") {
			return nil
		}
		source, err := os.ReadFile(file)
		for _, found := range declared.FindAllStringSubmatch(string(source), -1) {
			names[found[1]] = true
		}
		return err
	}))
	return names
}

// TestDocumentsNameWhatExists: each test and each target of the Makefile that a page names exists.
func TestDocumentsNameWhatExists(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("../Makefile")
	require.NoError(t, err)
	tests := everyTest(t)
	code := regexp.MustCompile("(?s)```(?:sh|bash|console)?\n(.*?)```|`([^`\n]+)`")
	command := regexp.MustCompile(`(?m)(?:^|&& |: )make ((?:[a-z][a-z-]*(?: |$))+)`)
	named := regexp.MustCompile(`(?:^|[^.\w])((?:Test|Benchmark)[A-Z]\w+)`) // not outboxtest.TestPublisher
	for page, content := range documents(t) {
		for _, block := range code.FindAllStringSubmatch(content, -1) {
			for _, found := range command.FindAllStringSubmatch(block[1]+block[2], -1) {
				for target := range strings.FieldsSeq(found[1]) {
					assert.Regexp(t, `(?m)^`+target+`:`, string(makefile), "%s: make has no target %s", page, target)
				}
			}
		}
		for _, name := range named.FindAllStringSubmatch(content, -1) {
			assert.True(t, tests[name[1]], "%s names %s, which does not exist", page, name[1])
		}
	}
}

// benchmarkRatios returns the ratios of docs/reference/performance.md, by row.
func benchmarkRatios(t *testing.T, pages map[string]string) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)`: .*\\| ([0-9.]+|n/a) \\| [0-9.]+ \\|$").
		FindAllStringSubmatch(pages["docs/reference/performance.md"], -1) {
		all[row[1]] = 0
		if row[2] != "n/a" {
			ratio, err := strconv.ParseFloat(row[2], 64)
			require.NoError(t, err)
			all[row[1]] = ratio
		}
	}
	return all
}

func TestDocumentsQuoteTheBenchmark(t *testing.T) {
	t.Parallel()
	sources, err := filepath.Glob("../bench/*.go")
	require.NoError(t, err)
	rows := map[string]bool{}
	for _, file := range sources {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, row := range regexp.MustCompile(`\{\s*name:\s+"(\w+)",\s+(?:what|floor):`).FindAllStringSubmatch(string(source),
			-1) {
			rows[row[1]] = true
		}
	}
	require.Greater(t, len(rows), 15)
	for row := range benchmarkRatios(t, documents(t)) {
		assert.True(t, rows[row], "docs/reference/performance.md has a row that the benchmark has not: %s", row)
	}
}
