package outboxtest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

const (
	conformancePublishers = 64
	clock                 = "15:04:05.000"
	killsPerTopics        = 10 // after these, new topics are used, because stored messages are always read completely
)

// load publishes from many goroutines until stop is called, which returns the acknowledged messages, by topic.
func (c conformance) load(
	pub message.Publisher, topics []string,
) (stop func(testing.TB) map[string]map[string]time.Time) {
	var wg sync.WaitGroup
	var over atomic.Bool
	var mu sync.Mutex
	acked := map[string]map[string]time.Time{}
	for _, topic := range topics {
		acked[topic] = map[string]time.Time{}
	}
	for i := range conformancePublishers {
		topic := topics[i%len(topics)]
		wg.Go(func() {
			for !over.Load() {
				msg := withPayload("load")
				if err := pub.Publish(topic, msg); err != nil {
					time.Sleep(pauseAfterError)
					continue
				}
				mu.Lock()
				acked[topic][msg.UUID] = time.Now()
				mu.Unlock()
			}
		})
	}
	return func(t testing.TB) map[string]map[string]time.Time {
		t.Helper()
		over.Store(true)
		c.inTime(t, "the end of the load", func() error { wg.Wait(); return nil })
		return acked
	}
}

// span is the first and the last of sorted times.
func span(sorted []time.Time) string {
	if len(sorted) == 0 {
		return "-"
	}
	return fmt.Sprintf("%s to %s", sorted[0].Format(clock), sorted[len(sorted)-1].Format(clock))
}

// compare fails the test for each topic that lacks acknowledged messages, and counts them.
func (c conformance) compare(t *testing.T, acked map[string]map[string]time.Time) (acknowledged, missing int) {
	t.Helper()
	for topic, want := range acked {
		n := len(want)
		for _, msg := range c.Stored(t, topic) {
			delete(want, msg.UUID)
		}
		if n == 0 || len(want) > 0 {
			at := slices.SortedFunc(maps.Values(want), time.Time.Compare)
			t.Errorf("%s: %d of %d acknowledged messages are missing, acknowledged at %s", topic, len(want), n, span(at))
		}
		acknowledged, missing = acknowledged+n, missing+len(want)
	}
	return acknowledged, missing
}

func (c conformance) nilMeansStored(t *testing.T) {
	pub := c.publisher(t)
	acknowledged, missing, kills := 0, 0, 0
	for kills < c.Kills {
		n := min(killsPerTopics, c.Kills-kills)
		a, m := c.killed(t, pub, n)
		acknowledged, missing, kills = acknowledged+a, missing+m, kills+n
		t.Logf("%d acknowledged, %d missing, %d kills", acknowledged, missing, kills)
	}
}

// killed kills the broker n times under load.
func (c conformance) killed(t *testing.T, pub message.Publisher, n int) (acknowledged, missing int) {
	topics := []string{c.NewTopic(t), c.NewTopic(t)}
	for _, topic := range topics {
		c.until(t, pub, topic, withPayload("warm"))
	}
	stop := c.load(pub, topics)
	underLoad := func() { // waits until the load flows again
		for range 100 {
			c.until(t, pub, topics[0], withPayload("probe"))
		}
	}
	for i := range n {
		underLoad()
		var err error
		if c.Kill != nil {
			t.Logf("killed at %s", time.Now().Format(clock))
			if err = c.Kill(); err == nil {
				err = c.Restart()
			}
		}
		if err == nil && c.Freeze != nil && (c.Kill == nil || i%2 == 0) {
			underLoad()
			if err = c.Freeze(); err == nil {
				time.Sleep(time.Second) // the length of the outage matters to the test
				err = c.Thaw()
			}
		}
		if err != nil {
			stop(t)
			t.Fatal(err)
		}
	}
	underLoad()
	return c.compare(t, stop(t))
}

func (c conformance) bounded(t *testing.T) {
	pub := c.publisher(t)
	topic := c.NewTopic(t)
	before := withPayload("before")
	c.until(t, pub, topic, before)
	acked := map[string]time.Time{before.UUID: time.Now()}
	if err := c.Freeze(); err != nil {
		t.Fatal(err)
	}
	thaw := sync.OnceValue(c.Thaw)
	defer func() { _ = thaw() }()
	c.inTime(t, "Publish", func() error {
		for begun := time.Now(); time.Since(begun) < bound; { // a process with many threads stops a moment after its signal
			msg := withPayload("frozen")
			if err := pub.Publish(topic, msg); err != nil {
				return c.unavailable(err)
			}
			acked[msg.UUID] = time.Now()
		}
		return c.unavailable(nil)
	})
	c.inTime(t, "Close", func() error { _ = pub.Close(); return nil })
	if err := thaw(); err != nil {
		t.Fatal(err)
	}
	c.until(t, c.publisher(t), topic, withPayload("after"))
	c.compare(t, map[string]map[string]time.Time{topic: acked})
}

func (c conformance) verdicts(t *testing.T) {
	pub := c.publisher(t)
	topic := c.NewTopic(t)
	c.until(t, pub, topic, withPayload("before"))
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	restart := sync.OnceValue(c.Restart)
	defer func() { _ = restart() }()
	for range 3 {
		c.inTime(t, "Publish", func() error { return c.unavailable(pub.Publish(topic, withPayload("down"))) })
	}
	if err := restart(); err != nil {
		t.Fatal(err)
	}
	c.until(t, pub, topic, withPayload("after"))
}

func (c conformance) startWithout(t *testing.T) {
	topic := c.NewTopic(t)
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	restart := sync.OnceValue(c.Restart)
	defer func() { _ = restart() }()
	var pub message.Publisher
	c.inTime(t, "opening without a broker", func() (err error) {
		if pub, err = c.open(); err != nil {
			return fmt.Errorf("opening without a broker: %w", err)
		}
		return nil
	})
	if pub == nil {
		return
	}
	c.inTime(t, "Publish", func() error { return c.unavailable(pub.Publish(topic, withPayload("early"))) })
	if err := restart(); err != nil {
		t.Fatal(err)
	}
	c.until(t, pub, topic, withPayload("later"))

	c.inTime(t, "Publish during Close", func() error {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { _ = pub.Publish(topic, withPayload("closing")) })
			wg.Go(func() { _ = pub.Close() })
		}
		wg.Wait()
		if pub.Publish(topic, withPayload("closed")) == nil {
			return errors.New("Publish after Close returned nil")
		}
		return nil
	})
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
		stop(t)
		t.Fatal(err)
	}
	c.compare(t, stop(t))
}
