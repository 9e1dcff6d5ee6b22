package main

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/examples/internal/demotest"
)

func TestMain(m *testing.M) { demotest.Main(m, main) }

// TestBadDayAddsUp runs the demo: the broker fails, a process is killed, and in the end each order is booked once and
// each booking published.
func TestBadDayAddsUp(t *testing.T) {
	var page string
	code, output := demotest.Watch(t, func(line string) {
		if _, said, ok := strings.Cut(line, "** The page is "); ok {
			page, _, _ = strings.Cut(said, " ")
			if got := read(t, page); !strings.Contains(got, "Read only") || !strings.Contains(got, ">running<") {
				t.Errorf("the page is %s", got)
			}
		}
	}, "-orders", "300", "-for", "3s", "-outage", "1s", "-log", "-observe")
	if code != 0 {
		t.Fatalf("exit code %d", code)
	}
	if page == "" {
		t.Error("the output does not show the address of the page")
	}
	for _, line := range []string{
		"BROKER IS DOWN", "IS KILLED", "takes its place", "It adds up.",
		"outbox_written_messages_total                       300", "  process orders-", "    create bookings-",
		"      send bookings-",
	} {
		if !strings.Contains(output, line) {
			t.Errorf("the output lacks %q", line)
		}
	}
}

func read(t *testing.T, url string) string {
	t.Helper()
	client := &http.Client{Timeout: 5 * time.Minute}
	defer client.CloseIdleConnections()
	answer, err := client.Get(url)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Error(err)
	}
	return string(body)
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
