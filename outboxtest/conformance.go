package outboxtest

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
)

// Broker is the server behind a publisher. If a function is nil, the subtests that need it are skipped and logged.
type Broker struct {
	// NewTopic makes a topic (a queue, a stream) that stores what is published to it, and returns its name. Required.
	NewTopic func(t testing.TB) string
	// Stored returns all messages of a topic, oldest first. It is called while the broker runs. Required.
	Stored func(t testing.TB, topic string) []*message.Message

	// Kill ends the broker as a crash would; Restart starts it again and returns when it answers.
	Kill    func() error
	Restart func() error
	// Freeze keeps the broker from answering while its connections stay open; Thaw ends that.
	Freeze func() error
	Thaw   func() error
	// LosePower replaces what the broker stored by what had reached the disk, and starts it again.
	LosePower func() error

	// Missing is a topic that nothing stores. Left out if empty.
	Missing string
	// Poison returns a message that the broker or its client can never take. Left out if nil.
	Poison func() *message.Message
	// Classify returns the verdict on an error; default: the verdict of the forwarder.PublishError in it.
	Classify func(error) forwarder.Verdict

	// KeepsNull: a nil payload arrives as nil, not as an empty one.
	KeepsNull bool
	// Bound is how long Publish and Close may take against a broker that does not answer; default 30 s.
	Bound time.Duration
	// Kills is how often the broker is killed and frozen under load; default 10.
	Kills int
}

const (
	conformancePublishers = 64
	conformanceKeys       = 16
	conformancePerKey     = 50
	pauseAfterError       = 20 * time.Millisecond
)

// TestPublisher checks that a Publisher may stand behind a forwarder.Forwarder: a nil error means stored, and every
// other result comes in time and has the right cause. It runs eleven subtests. open returns a new publisher, also while
// the broker is down; TestPublisher closes it. The broker must belong to the test, since it is killed and frozen.
func TestPublisher(t *testing.T, open func() (message.Publisher, error), b Broker) {
	t.Helper()
	if b.Bound == 0 {
		b.Bound = 30 * time.Second
	}
	if b.Kills == 0 {
		b.Kills = 10
	}
	if b.Classify == nil {
		b.Classify = verdictOf
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

// publisher returns one that is closed with the test.
func (c conformance) publisher(t *testing.T) message.Publisher {
	t.Helper()
	pub, err := c.open()
	if err != nil {
		t.Fatal("open:", err)
	}
	t.Cleanup(func() { c.inTime(t, "Close", func() { _ = pub.Close() }) })
	return pub
}

// inTime fails the test if do takes longer than Bound.
func (c conformance) inTime(t testing.TB, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); do() }()
	select {
	case <-done:
	case <-time.After(c.Bound):
		t.Errorf("%s takes longer than %s", what, c.Bound)
		<-done
	}
}

// until publishes a message until that succeeds. A broker that was just restarted may need a moment.
func (c conformance) until(t testing.TB, pub message.Publisher, topic string, msg *message.Message) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(2 * c.Bound); time.Now().Before(deadline); time.Sleep(pauseAfterError) {
		if err = pub.Publish(topic, msg); err == nil {
			return
		}
	}
	t.Fatalf("publish %s: %v", msg.UUID, err)
}

func withPayload(payload string) *message.Message {
	return message.NewMessage(watermill.NewUUID(), []byte(payload))
}

// load publishes from many goroutines until stop is called, which returns what was acknowledged, by topic.
func (c conformance) load(pub message.Publisher, topics []string) (stop func() map[string]map[string]bool) {
	var wg sync.WaitGroup
	var over atomic.Bool
	var mu sync.Mutex
	acked := map[string]map[string]bool{}
	for _, topic := range topics {
		acked[topic] = map[string]bool{}
	}
	for i := range conformancePublishers {
		topic := topics[i%len(topics)]
		wg.Go(func() {
			for !over.Load() {
				msg := withPayload("load")
				if err := pub.Publish(topic, msg); err != nil {
					time.Sleep(pauseAfterError) // a client that is refused at once would spin
					continue
				}
				mu.Lock()
				acked[topic][msg.UUID] = true
				mu.Unlock()
			}
		})
	}
	return func() map[string]map[string]bool {
		over.Store(true)
		wg.Wait()
		return acked
	}
}

// compare fails the test for each topic that lacks acknowledged messages.
func (c conformance) compare(t *testing.T, acked map[string]map[string]bool) {
	t.Helper()
	for topic, want := range acked {
		n := len(want)
		for _, msg := range c.Stored(t, topic) {
			delete(want, msg.UUID)
		}
		t.Logf("%s: %d acknowledged, %d missing", topic, n, len(want))
		if n == 0 || len(want) > 0 {
			t.Errorf("%s: %d of %d acknowledged messages are missing", topic, len(want), n)
		}
	}
}

func (c conformance) nilMeansStored(t *testing.T) {
	pub := c.publisher(t)
	topics := []string{c.NewTopic(t), c.NewTopic(t)}
	for _, topic := range topics {
		c.until(t, pub, topic, withPayload("warm"))
	}
	stop := c.load(pub, topics)
	underLoad := func() { // until the load was seen to flow again
		for range 100 {
			c.until(t, pub, topics[0], withPayload("probe"))
		}
	}
	for i := range c.Kills {
		underLoad()
		var err error
		switch {
		case c.Freeze != nil && i%3 == 2:
			if err = c.Freeze(); err == nil {
				time.Sleep(time.Second) // the length of the outage is what is tested
				err = c.Thaw()
			}
		case c.Kill != nil:
			if err = c.Kill(); err == nil {
				err = c.Restart()
			}
		}
		if err != nil {
			stop()
			t.Fatal(err)
		}
	}
	underLoad()
	c.compare(t, stop())
}

func (c conformance) noDestination(t *testing.T) {
	pub := c.publisher(t)
	for i := range 3 {
		c.inTime(t, "Publish", func() {
			if err := pub.Publish(c.Missing, withPayload("lost?")); err == nil {
				t.Errorf("call %d returned nil, and nothing stores the topic", i)
			} else if v := c.Classify(err); v == forwarder.Permanent {
				t.Errorf("the verdict is %s, and the message dies for want of a topic: %v", v, err)
			}
		})
	}
}

func (c conformance) bounded(t *testing.T) {
	pub := c.publisher(t)
	topic := c.NewTopic(t)
	before := withPayload("before")
	c.until(t, pub, topic, before)
	acked := map[string]bool{before.UUID: true}
	if err := c.Freeze(); err != nil {
		t.Fatal(err)
	}
	thaw := sync.OnceValue(c.Thaw)
	defer func() { _ = thaw() }()
	c.inTime(t, "Publish", func() {
		for begun := time.Now(); ; { // a process of many threads stops a moment after its signal
			msg := withPayload("frozen")
			err := pub.Publish(topic, msg)
			if err == nil && time.Since(begun) < c.Bound {
				acked[msg.UUID] = true
				continue
			}
			if err == nil {
				t.Error("Publish returns nil while the broker is frozen")
			} else if v := c.Classify(err); v != forwarder.Unavailable {
				t.Errorf("the verdict is %s, want unavailable: %v", v, err)
			}
			return
		}
	})
	c.inTime(t, "Close", func() { _ = pub.Close() })
	if err := thaw(); err != nil {
		t.Fatal(err)
	}
	c.until(t, c.publisher(t), topic, withPayload("after"))
	c.compare(t, map[string]map[string]bool{topic: acked})
}

func (c conformance) verdicts(t *testing.T) {
	pub := c.publisher(t)
	topic := c.NewTopic(t)
	c.until(t, pub, topic, withPayload("before"))
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		c.inTime(t, "Publish", func() {
			if err := pub.Publish(topic, withPayload("down")); err == nil {
				t.Error("Publish returned nil while the broker was down")
			} else if v := c.Classify(err); v != forwarder.Unavailable {
				t.Errorf("the verdict is %s, want unavailable: %v", v, err)
			}
		})
	}
	if err := c.Restart(); err != nil {
		t.Fatal(err)
	}
	c.until(t, pub, topic, withPayload("after"))
}

func (c conformance) poison(t *testing.T) {
	pub := c.publisher(t)
	topic := c.NewTopic(t)
	c.until(t, pub, topic, withPayload("before"))
	var wg sync.WaitGroup
	for i := range conformancePublishers {
		wg.Go(func() {
			if i != conformancePublishers/2 {
				c.until(t, pub, topic, withPayload("good"))
				return
			}
			for range 3 { // alone or beside others, it fails and is blamed
				err := pub.Publish(topic, c.Poison())
				if err == nil {
					t.Error("Publish of the poison message returned nil")
				} else if v := c.Classify(err); v == forwarder.Unavailable {
					t.Errorf("the verdict is %s: the topic pauses for one message: %v", v, err)
				}
			}
		})
	}
	c.inTime(t, "publishing beside a poison message", wg.Wait)
}

func (c conformance) topicsApart(t *testing.T) {
	pub := c.publisher(t)
	topic := c.NewTopic(t)
	c.until(t, pub, topic, withPayload("before"))
	var over atomic.Bool
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for !over.Load() {
				_ = pub.Publish(c.Missing, withPayload("nowhere"))
			}
		})
	}
	c.inTime(t, "a hundred messages beside a missing topic", func() {
		for i := range 100 {
			if err := pub.Publish(topic, withPayload("good")); err != nil {
				t.Errorf("message %d: %v", i, err)
				return
			}
		}
	})
	over.Store(true)
	c.inTime(t, "the last calls", wg.Wait)
}

func (c conformance) order(t *testing.T) {
	pub := c.publisher(t)
	topic := c.NewTopic(t)
	var wg sync.WaitGroup
	for k := range conformanceKeys {
		wg.Go(func() {
			for n := range conformancePerKey {
				msg := withPayload(fmt.Sprint(n))
				msg.Metadata.Set(outbox.MetadataKey, fmt.Sprint("key-", k))
				msg.Metadata.Set("k", fmt.Sprint(k))
				c.until(t, pub, topic, msg)
			}
		})
	}
	wg.Wait()
	next := map[string]int{}
	for _, msg := range c.Stored(t, topic) {
		k := msg.Metadata.Get("k")
		if got := string(msg.Payload); got == fmt.Sprint(next[k]) {
			next[k]++
		} else if got > fmt.Sprint(next[k]) && len(got) >= len(fmt.Sprint(next[k])) {
			t.Fatalf("key %s: message %s came before message %d", k, got, next[k])
		}
	}
	for k := range conformanceKeys {
		if got := next[fmt.Sprint(k)]; got != conformancePerKey {
			t.Errorf("key %d: %d of %d messages in order", k, got, conformancePerKey)
		}
	}
}

func (c conformance) fidelity(t *testing.T) {
	pub := c.publisher(t)
	topic := c.NewTopic(t)
	large := bytes.Repeat([]byte("watermill"), 1<<20/9) // Kafka's limit is a little above 1 MiB, headers included
	payloads := [][]byte{nil, {}, {0}, {0xff, 0xfe, 0}, []byte("text"), large[:len(large)-4096]}
	commands := message.Metadata{ // each is a command to a broker, and must arrive as what it is: metadata
		"CC": "elsewhere", "BCC": "elsewhere", "x-delay": "1000", "Nats-Rollup": "all", "Nats-Expected-Last-Sequence": "7",
		"plain": "grüße", "empty": "",
	}
	want := map[string]*message.Message{}
	for _, payload := range payloads {
		msg := message.NewMessage(watermill.NewUUID(), payload)
		for key, value := range commands {
			msg.Metadata.Set(key, value)
		}
		want[msg.UUID] = msg
		c.until(t, pub, topic, msg.Copy())
	}
	for _, got := range c.Stored(t, topic) {
		sent := want[got.UUID]
		if sent == nil {
			t.Errorf("a message with the UUID %q was not sent", got.UUID)
			continue
		}
		delete(want, got.UUID)
		if !bytes.Equal(got.Payload, sent.Payload) {
			t.Errorf("%d bytes arrived as %d others", len(sent.Payload), len(got.Payload))
		}
		if c.KeepsNull && (got.Payload == nil) != (sent.Payload == nil) {
			t.Errorf("null: sent %t, arrived %t", sent.Payload == nil, got.Payload == nil)
		}
		for key, value := range commands {
			if got.Metadata.Get(key) != value {
				t.Errorf("metadata %q: sent %q, arrived %q", key, value, got.Metadata.Get(key))
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("%d messages did not arrive", len(want))
	}
}

func (c conformance) sameUUID(t *testing.T) {
	pub := c.publisher(t)
	topic := c.NewTopic(t)
	id := watermill.NewUUID()
	c.until(t, pub, topic, message.NewMessage(id, []byte("x")))
	c.until(t, pub, topic, message.NewMessage(id, []byte("x"))) // as after a crash between publish and settle
	n := 0
	for _, msg := range c.Stored(t, topic) {
		if msg.UUID == id {
			n++
		}
	}
	if n == 0 {
		t.Error("neither arrived")
	}
	t.Logf("%d of 2 copies stored", n)
	if c.Missing == "" {
		return
	}
	var wg sync.WaitGroup // copies in flight together: none may take the other's result
	for range 20 {
		wg.Go(func() {
			if err := pub.Publish(c.Missing, message.NewMessage(id, []byte("x"))); err == nil {
				t.Error("a copy to a missing topic returned nil")
			}
		})
	}
	wg.Wait()
}

func (c conformance) startWithout(t *testing.T) {
	topic := c.NewTopic(t)
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	restart := sync.OnceValue(c.Restart)
	defer func() { _ = restart() }()
	var pub message.Publisher
	c.inTime(t, "opening without a broker", func() {
		var err error
		if pub, err = c.open(); err != nil {
			t.Errorf("opening without a broker: %v", err)
		}
	})
	if pub == nil {
		return
	}
	if err := pub.Publish(topic, withPayload("early")); err == nil {
		t.Error("Publish returned nil without a broker")
	}
	if err := restart(); err != nil {
		t.Fatal(err)
	}
	c.until(t, pub, topic, withPayload("later"))

	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { _ = pub.Publish(topic, withPayload("closing")) })
		wg.Go(func() { _ = pub.Close() })
	}
	c.inTime(t, "Publish beside Close", wg.Wait)
	if err := pub.Publish(topic, withPayload("closed")); err == nil {
		t.Error("Publish after Close returned nil")
	} else if strings.Contains(err.Error(), "panic") {
		t.Error(err)
	}
}

func (c conformance) powerLoss(t *testing.T) {
	pub := c.publisher(t)
	topics := []string{c.NewTopic(t)}
	c.until(t, pub, topics[0], withPayload("warm"))
	stop := c.load(pub, topics)
	for range 1000 {
		c.until(t, pub, topics[0], withPayload("probe"))
	}
	if err := c.LosePower(); err != nil {
		stop()
		t.Fatal(err)
	}
	c.compare(t, stop())
}
