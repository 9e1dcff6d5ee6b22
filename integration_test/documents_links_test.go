package integration_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	aLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	aHeading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	noAnchor = regexp.MustCompile(`[^\w\- ]`)
)

// TestDocumentsLinks: each link of a page leads to a file, and to a heading that it has.
func TestDocumentsLinks(t *testing.T) {
	t.Parallel()
	pages := documents(t)
	for page, content := range pages {
		for _, found := range aLink.FindAllStringSubmatch(anExample.ReplaceAllString(content, ""), -1) {
			if strings.Contains(found[1], ":") {
				continue // another site's
			}
			file, anchor, _ := strings.Cut(found[1], "#")
			to := path.Join(path.Dir(page), file)
			if file == "" {
				to = page
			}
			_, err := os.Stat(filepath.Join("..", to))
			assert.NoError(t, err, "%s links to %s", page, found[1])
			if anchor != "" {
				assert.Contains(t, anchorsOf(pages[to]), anchor, "%s links to %s", page, found[1])
			}
		}
	}
}

// anchorsOf are the links that GitHub makes of headings.
func anchorsOf(content string) (all []string) {
	for _, found := range aHeading.FindAllStringSubmatch(content, -1) {
		all = append(all, strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(found[1]), ""), " ", "-"))
	}
	return all
}

// TestDocumentsAreShort: a newcomer reads the README in four minutes and finds each page from the list of all.
func TestDocumentsAreShort(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	assert.LessOrEqual(t, len(strings.Fields(string(readme))), 900, "words of the README")
	assert.LessOrEqual(t, len(readme), 10_000, "bytes of the README")
	list := documents(t)["docs/README.md"]
	for page, content := range documents(t) {
		if !slices.Contains(generatedPages, page) && page != "CHANGELOG.md" {
			for line := range strings.Lines(anExample.ReplaceAllString(content, "")) {
				if !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "!") {
					assert.LessOrEqual(t, utf8.RuneCountInString(line), 101, "columns of %s: %s", page, line)
				}
			}
		}
		if !strings.HasPrefix(page, "docs/") || page == "docs/README.md" {
			continue
		}
		if !slices.Contains(generatedPages, page) {
			assert.LessOrEqual(t, strings.Count(content, "\n"), 250, "lines of %s", page)
		}
		assert.Contains(t, list, "]("+strings.TrimPrefix(page, "docs/")+")", "docs/README.md lists %s", page)
	}
}
