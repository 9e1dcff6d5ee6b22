// Package docs has only tests: of the pages in docs, and of what they are written from.
package docs

import (
	"fmt"
	"os"
	"testing"
)

// TestMain has the tests read the repository from its root.
func TestMain(m *testing.M) {
	if err := os.Chdir("../../.."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
