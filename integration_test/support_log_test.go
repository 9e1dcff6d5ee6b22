package integration_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/forwarder"
)

// logCapture is a logger that remembers what was logged at info and above.
type logCapture struct {
	t  testing.TB
	mu *sync.Mutex

	lines *[]string
}

var _ watermill.LoggerAdapter = logCapture{}

func newLogCapture(t testing.TB) logCapture { return logCapture{t, &sync.Mutex{}, &[]string{}} }

func (l logCapture) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*l.lines = append(*l.lines, line)
}

func (l logCapture) Error(msg string, err error, _ watermill.LogFields) {
	l.add("error: " + msg + ": " + err.Error())
}
func (l logCapture) Info(msg string, _ watermill.LogFields)           { l.add("info: " + msg) }
func (l logCapture) Debug(string, watermill.LogFields)                {}
func (l logCapture) Trace(string, watermill.LogFields)                {}
func (l logCapture) With(watermill.LogFields) watermill.LoggerAdapter { return l }

// count returns how many lines hold the text.
func (l logCapture) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, line := range *l.lines {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func itoa(n int) string { return strconv.Itoa(n) }

// runInBackground runs a forwarder until the test ends and waits until it owns lanes.
func runInBackground(t testing.TB, f *forwarder.Forwarder) {
	t.Helper()
	failed := make(chan error, 1)
	go func() { failed <- f.Run(context.Background()) }()
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if err := <-failed; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-f.Running():
	case err := <-failed:
		failed <- nil
		t.Fatal(err)
	case <-time.After(patience):
		t.Fatal("the forwarder does not run")
	}
}
