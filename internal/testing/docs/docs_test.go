// Package docs has only tests: of the pages in docs, and of their sources.
package docs

import (
	"fmt"
	"os"
	"testing"
)

// TestMain makes the tests run in the repository's root.
func TestMain(m *testing.M) {
	if err := os.Chdir("../../.."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
