package integration_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/forwarder"
)

const (
	unknown     = forwarder.Unknown
	retry       = forwarder.Retry
	unavailable = forwarder.Unavailable
	permanent   = forwarder.Permanent
)

// outagePatience is how long a publisher may take to notice that its broker is down or up again: sarama's circuit
// breaker alone takes ten seconds.
const outagePatience = 2 * time.Minute

func take(t testing.TB, in <-chan *message.Message, n int) []*message.Message {
	t.Helper()
	var all []*message.Message
	timeout := time.After(outagePatience)
	for len(all) < n {
		select {
		case msg := <-in:
			msg.Ack()
			all = append(all, msg)
		case <-timeout:
			t.Fatalf("%d of %d messages arrived", len(all), n)
		}
	}
	return all
}

// verdictOf returns an error's own verdict.
func verdictOf(err error) forwarder.Verdict {
	var judged *forwarder.PublishError
	if !errors.As(err, &judged) {
		return -1
	}
	return judged.Verdict
}

// load publishes from many goroutines, each message until it is acknowledged.
type load struct {
	t    testing.TB
	done chan struct{}
	wg   sync.WaitGroup

	mu       sync.Mutex
	acked    map[string]bool
	verdicts map[forwarder.Verdict]int
	errs     map[string]int
}

func startLoad(t testing.TB, pub message.Publisher, topic string, writers int, payload string) *load {
	l := &load{
		t: t, done: make(chan struct{}), acked: map[string]bool{}, verdicts: map[forwarder.Verdict]int{},
		errs: map[string]int{},
	}
	for range writers {
		l.wg.Go(func() {
			msg := newMessage(payload)
			for {
				err := pub.Publish(topic, msg)
				l.mu.Lock()
				if err != nil {
					verdict := verdictOf(err)
					l.verdicts[verdict]++
					if verdict != unavailable {
						l.errs[err.Error()]++
					}
				} else {
					l.acked[msg.UUID] = true
					msg = newMessage(payload)
				}
				l.mu.Unlock()

				pause := 5 * time.Millisecond
				if err != nil {
					pause = 100 * time.Millisecond // otherwise most of the time goes into refusals
				}
				select {
				case <-l.done:
					return
				case <-time.After(pause):
				}
			}
		})
	}
	t.Cleanup(l.stop)
	return l
}

func (l *load) wait(what string, reached func(*load) bool) {
	l.t.Helper()
	for deadline := time.Now().Add(outagePatience); ; time.Sleep(10 * time.Millisecond) {
		l.mu.Lock()
		ok := reached(l)
		l.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("no %s within %s", what, outagePatience)
		}
	}
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

func (l *load) stop() {
	select {
	case <-l.done:
	default:
		close(l.done)
	}
	l.wg.Wait()
}

// logCapture is a logger that records lines at info and above.
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

// count returns the number of lines that contain a text.
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

// newMessage returns a message with a fresh UUID.
func newMessage(payload string) *message.Message {
	return message.NewMessage(watermill.NewUUID(), message.Payload(payload))
}
