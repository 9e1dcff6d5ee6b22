// Package demotest is TestMain of the examples, and runs the main function of an example in a child process of the test
// binary.
package demotest

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"strings"
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
	return Watch(t, func(string) {}, args...)
}

// Watch is Run with a function that gets each line while the demo runs.
func Watch(t *testing.T, see func(line string), args ...string) (code int, output string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), mainEnv+"=1")
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for lines := bufio.NewReader(pipe); ; {
		line, err := lines.ReadString('\n')
		out.WriteString(line)
		if err != nil {
			break
		}
		see(line)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	t.Log(out.String())
	return cmd.ProcessState.ExitCode(), out.String()
}

// Start starts the example with these environment variables. Stop interrupts it, and fails the test unless it exits
// cleanly.
func Start(t *testing.T, env ...string) (stop func()) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(append(os.Environ(), mainEnv+"=1"), env...)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := errors.Join(cmd.Process.Signal(os.Interrupt), cmd.Wait()); err != nil {
			t.Fatal(err)
		}
	}
}
