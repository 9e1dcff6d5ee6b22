package admin

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestRunbookHasEachFinding: docs/run/runbook.md contains every text that doctor prints, and no other.
func TestRunbookHasEachFinding(t *testing.T) {
	files, err := filepath.Glob("doctor*.go")
	if err != nil {
		t.Fatal(err)
	}
	made := map[string]bool{}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(`e\.find(?:Of\([^"\n]+, |\()"(\w+)"`).FindAllSubmatch(source, -1) {
			made[string(found[1])] = true
		}
		for _, found := range regexp.MustCompile(`\{"(\w+)", \(\*doctorRun\)`).FindAllSubmatch(source, -1) {
			made[string(found[1])] = true // a check that could not run is a finding of this name
		}
	}
	for name := range made {
		if kinds[name].title == "" {
			t.Errorf("kinds has no title for %s", name)
		}
	}
	for name := range kinds {
		if !made[name] {
			t.Errorf("kinds has %s, which doctor does not find", name)
		}
	}
	page, err := os.ReadFile("../docs/run/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "## By finding")
	section, _, _ = strings.Cut(section, "\n## ")
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*)\\|").FindAllStringSubmatch(section, -1) {
		for _, name := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(row[1], -1) {
			listed = append(listed, name[1])
		}
	}
	if len(made) < 25 {
		t.Fatalf("found only %d findings in the code", len(made))
	}
	for name := range made {
		if !slices.Contains(listed, name) {
			t.Errorf("docs/run/runbook.md has no row for the finding %s", name)
		}
	}
	for _, name := range listed {
		if !made[name] {
			t.Errorf("docs/run/runbook.md has a row for %s, which doctor does not find", name)
		}
	}
}
