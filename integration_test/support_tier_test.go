package integration_test

import (
	"os"
	"testing"
)

// extended leaves a test to make test-all: it repeats a test of make test with another broker, driver or release, kills
// and breaks things at random, or measures.
func extended(t testing.TB) {
	t.Helper()
	if testing.Short() && os.Getenv(suiteChild) == "" {
		t.Skip("make test-all has it")
	}
}
