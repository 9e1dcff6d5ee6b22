// Package demotest is TestMain of the examples, and runs the main function of a demo in a process of its own, built with the test.
package demotest

import (
	"errors"
	"os"
	"os/exec"
	"testing"
)

const mainEnv = "OUTBOX_DEMO_MAIN"

// Main is TestMain of a demo.
func Main(m *testing.M, main func()) {
	if os.Getenv(mainEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// Run runs the demo, logs what it prints, and returns that and the exit code.
func Run(t *testing.T, args ...string) (code int, output string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), mainEnv+"=1")
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}
