package outboxtest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/forwarder"
)

// Broker is the server behind a publisher. If a function is nil, the subtests that need it are skipped and logged.
type Broker struct {
	// NewTopic creates a topic (a queue, a stream) that stores published messages, and returns its name. Required.
	NewTopic func(t testing.TB) string
	// Stored returns all messages of a topic, oldest first. It is called while the broker runs. Required.
	Stored func(t testing.TB, topic string) []*message.Message

	// Kill ends the broker like a crash; Restart starts it again and returns when it responds.
	Kill    func() error
	Restart func() error
	// Freeze keeps the broker from responding while its connections stay open; Thaw ends that.
	Freeze func() error
	Thaw   func() error
	// LosePower replaces the broker's data by the data that had reached the disk, and starts it again.
	LosePower func() error

	// Missing is a topic that no queue or stream stores. Its subtest is left out if empty.
	Missing string
	// Poison returns a message that the broker or its client can never accept. Its subtest is left out if nil.
	Poison func() *message.Message

	// KeepsNull: a nil payload arrives as nil, not as an empty one.
	KeepsNull bool
	// Kills is the number of times the broker is killed under load; default 10. It is frozen half as often, or as often if
	// Kill is nil.
	Kills int
}

// bound limits Publish and Close while the broker does not respond.
const bound = 30 * time.Second

// TestPublisher checks that a Publisher may be used by a forwarder.Forwarder: a nil error means stored, and every other
// result arrives in time and names the right cause. It runs eleven subtests. open returns a new publisher, even while
// the broker is down; TestPublisher closes it. The broker must belong to the test, because it is killed and frozen. A
// publisher that never returns leaves a goroutine behind.
func TestPublisher(t *testing.T, open func() (message.Publisher, error), b Broker) {
	t.Helper()
	if b.Kills == 0 {
		b.Kills = 10
	}
	c := conformance{open: open, Broker: b}
	for _, p := range []struct {
		name  string
		needs bool
		run   func(*testing.T)
	}{
		{"nil means stored", true, c.nilMeansStored},
		{"no destination", b.Missing != "", c.noDestination},
		{"bounded Publish and Close", b.Freeze != nil, c.bounded},
		{"verdicts while it is down", b.Kill != nil, c.verdicts},
		{"a poison message fails alone", b.Poison != nil, c.poison},
		{"topics apart", b.Missing != "", c.topicsApart},
		{"order per key", true, c.order},
		{"fidelity", true, c.fidelity},
		{"same UUID twice", true, c.sameUUID},
		{"start without broker, concurrent Close", b.Kill != nil, c.startWithout},
		{"power loss", b.LosePower != nil, c.powerLoss},
	} {
		t.Run(p.name, func(t *testing.T) {
			if !p.needs {
				t.Skip("the Broker lacks what this point needs")
			}
			p.run(t)
		})
	}
}

func verdictOf(err error) forwarder.Verdict {
	var e *forwarder.PublishError
	if errors.As(err, &e) {
		return e.Verdict
	}
	return forwarder.Unknown
}

type conformance struct {
	Broker
	open func() (message.Publisher, error)
}

// pauseAfterError keeps a client with immediate errors from spinning.
const pauseAfterError = 20 * time.Millisecond

// publisher returns a publisher that is closed with the test.
func (c conformance) publisher(t *testing.T) message.Publisher {
	t.Helper()
	pub, err := c.open()
	if err != nil {
		t.Fatal("open:", err)
	}
	t.Cleanup(func() { c.inTime(t, "Close", func() error { _ = pub.Close(); return nil }) })
	return pub
}

// inTime fails the test if do returns an error, and ends it if do takes longer than bound. Such a do continues to run,
// so it must not use t.
func (c conformance) inTime(t testing.TB, what string, do func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(bound):
		t.Fatalf("%s takes longer than %s", what, bound)
	}
}

// until publishes a message until that succeeds. A broker that was just restarted may need a moment.
func (c conformance) until(t testing.TB, pub message.Publisher, topic string, msg *message.Message) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- c.try(pub, topic, msg) }()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(3 * bound): // try gives up earlier, between two calls
		t.Fatalf("Publish of %s takes longer than %s", msg.UUID, bound)
	}
}

// try is until without a test.
func (c conformance) try(pub message.Publisher, topic string, msg *message.Message) (err error) {
	for deadline := time.Now().Add(2 * bound); time.Now().Before(deadline); time.Sleep(pauseAfterError) {
		if err = pub.Publish(topic, msg); err == nil {
			return nil
		}
	}
	return fmt.Errorf("publish %s: %w", msg.UUID, err)
}

// unavailable returns an error unless an error of Publish has that verdict.
func (c conformance) unavailable(err error) error {
	if err == nil {
		return errors.New("Publish returned nil while the broker did not respond")
	}
	if v := verdictOf(err); v != forwarder.Unavailable {
		return fmt.Errorf("the verdict is %s, want unavailable: %w", v, err)
	}
	return nil
}

func withPayload(payload string) *message.Message {
	return message.NewMessage(watermill.NewUUID(), []byte(payload))
}
