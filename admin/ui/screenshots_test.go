package ui

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestScreenshotsAreOfThisPage fails if the page has changed since its screenshots in docs were made. docs/page.sum
// covers their sources: templates, style, script, and the words that Go inserts.
func TestScreenshotsAreOfThisPage(t *testing.T) {
	var sum strings.Builder
	for _, pattern := range []string{"page/*", "words.go", "verbs.go",
		"../../internal/testing/uitest/screenshots_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&sum, "%x  %s\n", sha256.Sum256(source), filepath.ToSlash(filepath.Clean(file)))
		}
	}
	const kept = "../../docs/page.sum"
	if os.Getenv("OUTBOX_WRITE_SUM") != "" { // make screenshots
		if err := os.WriteFile(kept, []byte(sum.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	made, err := os.ReadFile(kept)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(sum.String()) {
		if !strings.Contains(string(made), line) {
			t.Errorf("%s has changed since the pictures of the page were made: run make screenshots", strings.Fields(line)[1])
		}
	}
	for _, name := range []string{"page.png", "page-errors.png", "page-messages.png"} {
		if info, err := os.Stat(filepath.Join("../../docs", name)); err != nil || info.Size() > 200_000 {
			t.Errorf("docs/%s is missing or has more than 200 kB: %v", name, err)
		}
	}
}
