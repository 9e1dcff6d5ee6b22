package docs

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestContributingNamesTheGenerators: the table of CONTRIBUTING.md has each target of the Makefile that writes pages
// from the code, with files that are there, and no other. A recipe that has a test write is such a target.
func TestContributingNamesTheGenerators(t *testing.T) {
	makefile, contributing := read(t, "Makefile"), read(t, "CONTRIBUTING.md")
	listed := regexp.MustCompile(`(?m)^GENERATORS := (.*)$`).FindStringSubmatch(makefile)
	if listed == nil {
		t.Fatal("the Makefile has no list GENERATORS")
	}
	generators := strings.Fields(listed[1])
	slices.Sort(generators)

	var named []string
	rows := regexp.MustCompile("(?m)^\\| `make ([a-z-]+)` \\| (.*) \\|$")
	for _, row := range rows.FindAllStringSubmatch(contributing, -1) {
		named = append(named, row[1])
		recipe := regexp.MustCompile(`(?m)^` + row[1] + `:.*\n(\t.*\n)+`).FindString(makefile)
		if recipe == "" {
			t.Errorf("CONTRIBUTING.md names make %s, which the Makefile has not", row[1])
		}
		folder := ""
		for _, file := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[2], -1) {
			if i := strings.LastIndex(file[1], "/"); i >= 0 {
				folder = file[1][:i+1]
			} else {
				file[1] = folder + file[1]
			}
			if _, err := os.Stat(file[1]); err != nil {
				t.Errorf("make %s is said to write %s: %v", row[1], file[1], err)
			}
		}
	}
	slices.Sort(named)
	if !slices.Equal(named, generators) {
		t.Errorf("CONTRIBUTING.md names %v, and GENERATORS of the Makefile is %v", named, generators)
	}
	writing := regexp.MustCompile(`(?m)^([a-z-]+):.*\n(?:\t.*\n)*\t.*\bOUTBOX_WRITE_`)
	for _, writes := range writing.FindAllStringSubmatch(makefile, -1) {
		if !slices.Contains(generators, writes[1]) {
			t.Errorf("make %s writes a page or list, and is not in GENERATORS of the Makefile", writes[1])
		}
	}
}
