package integration_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

var (
	anExample = regexp.MustCompile("(?ms)^```.*?^```$")
	aLink     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	aHeading  = regexp.MustCompile(`(?m)^#+ (.*)$`)
	noAnchor  = regexp.MustCompile(`[^\w\- ]`)
)

// TestDocumentsLinks: each link of a page leads to an existing file and heading.
func TestDocumentsLinks(t *testing.T) {
	t.Parallel()
	pages := documents(t)
	for page, content := range pages {
		for _, found := range aLink.FindAllStringSubmatch(anExample.ReplaceAllString(content, ""), -1) {
			if strings.Contains(found[1], ":") {
				continue // on another site
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

// anchorsOf returns the anchors that GitHub generates for headings.
func anchorsOf(content string) (all []string) {
	for _, found := range aHeading.FindAllStringSubmatch(content, -1) {
		all = append(all, strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(found[1]), ""), " ", "-"))
	}
	return all
}
