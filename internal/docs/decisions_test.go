package docs

import (
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
)

// aDecision is a paragraph of one of the pages of decisions, with its number.
var aDecision = regexp.MustCompile(`(?m)^- (\d+): `)

// TestDecisionsHaveNumbersOfTheirOwn: comments and pages name a decision by its number, so over all pages no number is
// taken twice and none is missing, and each page has the newest last.
func TestDecisionsHaveNumbersOfTheirOwn(t *testing.T) {
	t.Parallel()
	where := map[int]string{}
	for _, page := range glob(t, "docs/reference/decisions*.md") {
		last := 0
		for _, found := range aDecision.FindAllStringSubmatch(read(t, page), -1) {
			n, _ := strconv.Atoi(found[1])
			if other, taken := where[n]; taken {
				t.Errorf("decision %d is in %s and in %s: give the newer one the next number", n, other, page)
			}
			if n < last {
				t.Errorf("%s: decision %d comes after %d", page, n, last)
			}
			where[n], last = page, n
		}
	}
	for n := range len(where) {
		if _, has := where[n+1]; !has {
			t.Errorf("decision %d is missing: there are %d", n+1, len(where))
		}
	}
	if len(where) < 61 {
		t.Errorf("only %d decisions were found", len(where))
	}
	named := regexp.MustCompile(`\[decision (\d+)\]\(([^)]+)\)`)
	for _, page := range slices.Concat(glob(t, "docs/*/*.md"), []string{"README.md", "CONTRIBUTING.md"}) {
		for _, found := range named.FindAllStringSubmatch(read(t, page), -1) {
			n, _ := strconv.Atoi(found[1])
			if is := filepath.ToSlash(filepath.Join(filepath.Dir(page), found[2])); filepath.ToSlash(where[n]) != is {
				t.Errorf("%s looks for decision %d in %s, and it is in %s", page, n, is, where[n])
			}
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
