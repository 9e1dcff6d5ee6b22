package integration_test

import (
	"os"
	"testing"
)

// extended leaves a test to `make test-all`: it repeats one of `make test` on another broker, driver or release, kills
// and breaks at random, or measures.
func extended(t testing.TB) {
	t.Helper()
	if testing.Short() && os.Getenv(suiteChild) == "" {
		t.Skip("make test-all has it")
	}
}
