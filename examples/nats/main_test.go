package main

import (
	"strings"
	"testing"

	"github.com/millrace-go/watermill-outbox/examples/internal/demotest"
)

func TestMain(m *testing.M) { demotest.Main(m, main) }

func TestBadDayAddsUp(t *testing.T) {
	code, output := demotest.Run(t, "-orders", "300", "-for", "3s", "-outage", "1s", "-log", "-observe")
	if code != 0 {
		t.Fatalf("exit code %d", code)
	}
	for _, line := range []string{
		"BROKER IS GONE", "IS KILLED", "takes its place", "It adds up.",
		"outbox_written_messages_total                       300", "  process orders-", "    create bookings-", "      send bookings-",
	} {
		if !strings.Contains(output, line) {
			t.Errorf("the output lacks %q", line)
		}
	}
}

func TestBrokenResultIsNoticed(t *testing.T) {
	for _, how := range []string{"drop", "double"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			code, output := demotest.Run(t, "-orders", "50", "-for", "500ms", "-calm", "-spoil", how, "-log")
			if code != 1 || !strings.Contains(output, "IT DOES NOT ADD UP.") {
				t.Errorf("exit code %d, want 1 and a table that does not add up", code)
			}
		})
	}
}
