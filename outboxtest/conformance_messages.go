package outboxtest

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
)

const (
	conformanceKeys   = 16
	conformancePerKey = 50
)

// all runs n calls concurrently and returns their errors.
func all(n int, do func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = do(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (c conformance) noDestination(t *testing.T) {
	pub := c.publisher(t)
	for range 3 {
		c.inTime(t, "Publish", func() error {
			err := pub.Publish(c.Missing, withPayload("lost?"))
			if err == nil {
				return errors.New("Publish returned nil although nothing stores the topic")
			}
			if v := verdictOf(err); v == forwarder.Permanent {
				return fmt.Errorf("the verdict is %s: the message dies because a topic is missing: %w", v, err)
			}
			return nil
		})
	}
}

func (c conformance) poison(t *testing.T) {
	pub := c.publisher(t)
	topic := c.NewTopic(t)
	c.until(t, pub, topic, withPayload("before"))
	c.inTime(t, "publishing next to a poison message", func() error {
		return all(conformancePublishers, func(i int) error {
			if i != conformancePublishers/2 {
				return c.try(pub, topic, withPayload("good"))
			}
			for range 3 { // alone or with others, it fails and is blamed
				err := pub.Publish(topic, c.Poison())
				if err == nil {
					return errors.New("Publish of the poison message returned nil")
				}
				if v := verdictOf(err); v == forwarder.Unavailable {
					return fmt.Errorf("the verdict is %s: the topic pauses because of one message: %w", v, err)
				}
			}
			return nil
		})
	})
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
	defer over.Store(true)
	c.inTime(t, "a hundred messages next to a missing topic", func() error {
		for i := range 100 {
			if err := pub.Publish(topic, withPayload("good")); err != nil {
				return fmt.Errorf("message %d: %w", i, err)
			}
		}
		return nil
	})
	over.Store(true)
	c.inTime(t, "the last calls", func() error { wg.Wait(); return nil })
}

func (c conformance) order(t *testing.T) {
	pub := c.publisher(t)
	topic := c.NewTopic(t)
	c.inTime(t, "publishing many keys", func() error {
		return all(conformanceKeys, func(k int) error {
			for n := range conformancePerKey {
				msg := withPayload(strconv.Itoa(n))
				msg.Metadata.Set(outbox.MetadataKey, fmt.Sprint("key-", k))
				msg.Metadata.Set("k", strconv.Itoa(k))
				if err := c.try(pub, topic, msg); err != nil {
					return err
				}
			}
			return nil
		})
	})
	next := map[string]int{}
	for _, msg := range c.Stored(t, topic) {
		k := msg.Metadata.Get("k")
		switch n, _ := strconv.Atoi(string(msg.Payload)); {
		case n == next[k]:
			next[k]++
		case n > next[k]: // a smaller number is a copy
			t.Fatalf("key %s: message %d came before message %d", k, n, next[k])
		}
	}
	for k := range conformanceKeys {
		if got := next[strconv.Itoa(k)]; got != conformancePerKey {
			t.Errorf("key %d: %d of %d messages in order", k, got, conformancePerKey)
		}
	}
}

func (c conformance) fidelity(t *testing.T) {
	pub := c.publisher(t)
	topic := c.NewTopic(t)
	large := bytes.Repeat([]byte("watermill"), 1<<20/9) // Kafka's limit is a little above 1 MiB, headers included
	payloads := [][]byte{nil, {}, {0}, {0xff, 0xfe, 0}, []byte("text"), large[:len(large)-4096]}
	commands := message.Metadata{ // each is a command to a broker, but must arrive as plain metadata
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
	c.inTime(t, "publishing copies concurrently", func() error { // none may get the result of another
		return all(20, func(int) error {
			if pub.Publish(c.Missing, message.NewMessage(id, []byte("x"))) == nil {
				return errors.New("a copy to a missing topic returned nil")
			}
			return nil
		})
	})
}
