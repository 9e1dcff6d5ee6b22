package docs

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// anExample is a block of code in a page.
var anExample = regexp.MustCompile("(?ms)^```.*?^```$")

// TestDocumentsAreShort: a newcomer reads the README in four minutes and finds each page from the list of all. What a
// command writes may be long.
func TestDocumentsAreShort(t *testing.T) {
	t.Parallel()
	generated := []string{
		"docs/reference/configuration.md", "docs/reference/errors.md", "docs/reference/ibx.md",
		"docs/reference/metrics.md", "docs/reference/outboxctl.md", "docs/reference/performance.md",
		"docs/reference/reliability.md", "CHANGELOG.md",
	}
	if readme := read(t, "README.md"); len(strings.Fields(readme)) > 900 || len(readme) > 10_000 {
		t.Errorf("README.md has %d words and %d bytes", len(strings.Fields(readme)), len(readme))
	}
	list := read(t, "docs/README.md")
	pages, err := filepath.Glob("docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, "README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md") {
		page = filepath.ToSlash(page)
		if name, below := strings.CutPrefix(page, "docs/"); below && !strings.Contains(list, "]("+name+")") {
			t.Errorf("docs/README.md does not list %s", page)
		}
		if slices.Contains(generated, page) {
			continue
		}
		content := read(t, page)
		if n := strings.Count(content, "\n"); n > 250 {
			t.Errorf("%s has %d lines", page, n)
		}
		for line := range strings.Lines(anExample.ReplaceAllString(content, "")) {
			long := utf8.RuneCountInString(line) > 101
			if long && !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "!") {
				t.Errorf("%s: break this line at 100 columns: %s", page, line)
			}
		}
	}
}
