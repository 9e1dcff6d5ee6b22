package integration_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/forwarder"
)

const (
	unknown     = forwarder.Unknown
	retry       = forwarder.Retry
	unavailable = forwarder.Unavailable
	permanent   = forwarder.Permanent
)

// outagePatience is how long a publisher may take to notice that its broker is gone or back: sarama's
// circuit breaker alone takes ten seconds.
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

// verdictOf is what an error says of itself.
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
					pause = 100 * time.Millisecond // else most of the time goes into refusals
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
