package main

import (
	"strings"
	"testing"

	"github.com/millrace-go/watermill-outbox/examples/internal/demotest"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

func TestMain(m *testing.M) { demotest.Main(m, main) }

// TestBadDayAddsUp runs the demo: the broker fails, a process is killed, and in the end each order is booked once and
// each booking published.
func TestBadDayAddsUp(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all has it")
	}
	code, output := demotest.Run(t, "-orders", "300", "-for", "3s", "-outage", "1s", "-log")
	if code != 0 && strings.Contains(output, services.ErrNotInstalled.Error()) && !services.InCI() {
		t.Skip("no Java or Maven on this machine: this test did not run")
	}
	if code != 0 {
		t.Fatalf("exit code %d", code)
	}
	for _, line := range []string{"BROKER IS DOWN", "IS KILLED", "takes its place", "It adds up."} {
		if !strings.Contains(output, line) {
			t.Errorf("the output lacks %q", line)
		}
	}
}
