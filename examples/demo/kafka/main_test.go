package main

import (
	"strings"
	"testing"

	"github.com/millrace-go/watermill-outbox/examples/internal/demotest"
)

func TestMain(m *testing.M) { demotest.Main(m, main) }

// TestBadDayAddsUp runs the demo: the broker fails, a process is killed, and in the end each order is booked once and
// each booking published.
func TestBadDayAddsUp(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all has it")
	}
	code, output := demotest.Run(t, "-orders", "300", "-for", "3s", "-outage", "1s", "-log")
	if code != 0 {
		t.Fatalf("exit code %d", code)
	}
	want := []string{"BROKER IS DOWN", "IS KILLED", "takes its place", "It adds up."}
	if strings.Contains(output, "FAKE kafka") {
		want[0] = "The broker cannot be stopped from here"
	}
	for _, line := range want {
		if !strings.Contains(output, line) {
			t.Errorf("the output lacks %q", line)
		}
	}
}
