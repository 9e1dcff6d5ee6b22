package integration_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// executed says what runs each command that the documents name: CI, a test, another command, or the page
// that its output is kept in.
var executed = map[string]string{
	"make demo":        "TestBadDayAddsUp",
	"make demo-kafka":  "TestBadDayAddsUp",
	"make demo-page":   "TestPage",
	"make test-ui":     "the page that it drives", // in a browser, which CI has not
	"make test":        ".ci/run",
	"make test-rest":   ".ci/run",
	"make lint":        ".ci/run",
	"make build":       "make vet", // which compiles all that build does
	"make vet":         "make test-rest",
	"make api":         "TestAPI",
	"make metrics":     "TestMetricsDocument",
	"make outboxctl":   "TestDocument",
	"make reference":   "TestReference",
	"make pictures":    "TestPicturesAreAsDrawn",
	"make screenshots": "TestScreenshotsAreOfThisPage", // which names what has changed; it needs a browser to make them
	"make ibx":         "TestIBXDocument",
	// which it wrote, and TestDocumentsQuoteTheBenchmark compares with its rows
	"make bench":         "docs/reference/performance.md",
	"make night":         "TestNightOfFaults",
	"make chaos":         "TestChaos",
	"make scoreboard":    "docs/reference/performance.md",
	"make soak":          "TestChaos", // the same world
	"make mutants":       "TestMutants",
	"make simulate":      "TestModelKeepsOrderAndLosesNothing", // with other seeds
	"make fuzz":          "make test",                          // its targets, on their seeds
	"make bench-quick":   "make bench",                         // the same program
	"make test-matrix":   "TestOldestAndNewestPostgres",
	"make test-upgrade":  "make test-matrix",
	"make release-check": "TestReleaseCheck",
	"make release-tag":   "TestTag",
	"make generate":      "TestReference", // and the tests of the other targets that it makes
	"go get":             "TestInstall",
	"go mod":             "make release-check",
	"go build":           "make lint",
	"go install":         "make lint", // which compiles it
	"go run":             "make lint", // likewise; TestInbound runs what that example does
	"go test":            "make test",
}

// documents are the pages for users, by their path from the root.
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

// everyTest are the names of all tests and benchmarks of the repository.
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

func TestDocumentsNameCommandsThatAreRun(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("../Makefile")
	require.NoError(t, err)
	tests := everyTest(t)
	for command, by := range executed {
		switch {
		case strings.HasPrefix(by, "Test"):
			assert.True(t, tests[by], "%s is said to be run by %s, which does not exist", command, by)
		case strings.HasPrefix(by, "make "):
			assert.Contains(t, executed, by, "%s is said to be run by %s", command, by)
		case strings.HasSuffix(by, ".md"):
			assert.FileExists(t, filepath.Join("..", by), command)
		}
	}
	scripts, err := filepath.Glob("../.ci/*")
	require.NoError(t, err)
	for _, script := range scripts { // some of them CI does not run
		out, err := exec.CommandContext(t.Context(), "bash", "-n", script).CombinedOutput()
		require.NoError(t, err, "%s: %s", script, out)
	}
	code := regexp.MustCompile("(?s)```(?:sh|bash|console)?\n(.*?)```|`([^`\n]+)`")
	command := regexp.MustCompile(`(?m)(?:^|&& |: )(?:[A-Z_]+=\S+ )*(make|go) ((?:[a-z][a-z-]*(?: |$))+)`)
	named := regexp.MustCompile(`\b(?:Test|Benchmark)[A-Z]\w+`)
	for page, content := range documents(t) {
		for _, block := range code.FindAllStringSubmatch(content, -1) {
			for _, line := range strings.Split(block[1]+block[2], "\n") {
				for _, found := range command.FindAllStringSubmatch(line, -1) {
					words := strings.Fields(found[2])
					if found[1] == "go" {
						words = words[:1]
					}
					for _, word := range words {
						assert.Contains(t, executed, found[1]+" "+word, "%s: nothing runs %q", page, line)
						if found[1] == "make" {
							assert.Regexp(t, `(?m)^`+word+`:`, string(makefile), "%s: make has no target %s", page, word)
						}
					}
				}
			}
		}
		for _, name := range named.FindAllString(content, -1) {
			assert.True(t, tests[name], "%s names %s, which does not exist", page, name)
		}
	}
}

// benchmarkRatios are those of docs/reference/performance.md, by row.
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
