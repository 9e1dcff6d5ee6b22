package docs

import (
	"go/ast"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestPagesAreListed: a reader finds each page from docs/README.md.
func TestPagesAreListed(t *testing.T) {
	t.Parallel()
	list := read(t, "docs/README.md")
	for _, page := range glob(t, "docs/*/*.md") {
		if name := strings.TrimPrefix(filepath.ToSlash(page), "docs/"); !strings.Contains(list, "]("+name+")") {
			t.Errorf("docs/README.md does not list %s", page)
		}
	}
}

// TestArchitectureNamesEachPackage: a reader finds each package on the map.
func TestArchitectureNamesEachPackage(t *testing.T) {
	t.Parallel()
	page := read(t, "docs/reference/architecture.md")
	everyPackage(t, func(dir string, _ []*ast.File) {
		name := strings.TrimPrefix(dir, "forwarder/internal/")
		if dir != "." && dir != "cmd/outboxctl/cli" && name != "lanes" && !strings.HasPrefix(dir, "internal/testing/") &&
			!strings.Contains(page, name) {
			t.Errorf("docs/reference/architecture.md does not name %s", dir)
		}
	})
}

// TestReliabilityNamesTests: docs/reference/reliability.md links tests that exist, each in the file that it names.
func TestReliabilityNamesTests(t *testing.T) {
	t.Parallel()
	links := regexp.MustCompile(`\[(Test\w+)\]\(\.\./\.\./([^)]+)\)`).FindAllStringSubmatch(
		read(t, "docs/reference/reliability.md"), -1)
	if len(links) < 18 {
		t.Errorf("only %d tests are named", len(links))
	}
	for _, link := range links {
		if !strings.Contains(read(t, link[2]), "func "+link[1]+"(") {
			t.Errorf("%s has no %s", link[2], link[1])
		}
	}
}

func glob(t *testing.T, pattern string) []string {
	names, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestReadmeService: each line of the README's service stands in examples/kafka, which a test runs.
func TestReadmeService(t *testing.T) {
	t.Parallel()
	program := read(t, "examples/kafka/main.go")
	_, section, _ := strings.Cut(read(t, "README.md"), "## In a service\n")
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(section, -1)
	if len(blocks) != 2 {
		t.Errorf("README.md shows %d parts of a service, want its wiring and its handler", len(blocks))
	}
	for _, block := range blocks {
		for line := range strings.Lines(block[1]) {
			if !strings.Contains(program, strings.TrimPrefix(line, "import ")) {
				t.Errorf("examples/kafka/main.go does not have this line of README.md: %s", line)
			}
		}
	}
}
