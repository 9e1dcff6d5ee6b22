//go:build unix

package integration_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	outbox "github.com/millrace-go/watermill-outbox"
)

// TestParkRetryAfter: a key whose handler asks for a later retry is left alone for that long in the park too.
func TestParkRetryAfter(t *testing.T) {
	extended(t)
	t.Parallel()
	w := newInboundWorld(t, 1)
	const wait = patience / 3
	c, _ := w.parks()
	w.sendOne("late", "late 1")
	w.sendOne("late", "late 2")
	w.send(1000, 30)
	var asked atomic.Int64 // when the handler asked for a later retry
	var early, again atomic.Int64
	w.serve(c, func(_ *message.Message, key string) error {
		switch at := asked.Load(); {
		case key != "late":
			return nil
		case at == 0 && w.parked() == 0:
			return errors.New("fails")
		case at == 0:
			asked.Store(time.Now().UnixNano())
			return outbox.RetryAfter(errors.New("later"), wait)
		case time.Since(time.Unix(0, at)) < wait:
			early.Add(1)
		}
		again.Add(1)
		return nil
	})
	eventually(t, func() bool { return again.Load() > 0 }, "it is retried")
	w.settles()
	assert.Zero(t, early.Load(), "calls before the time was up")
}

// TestParkKeepsRetryAfter: a message whose handler asked for a later retry is parked as any other that fails, so that
// its partition goes on, and waits there as long as the handler has said.
func TestParkKeepsRetryAfter(t *testing.T) {
	extended(t)
	t.Parallel()
	w := newInboundWorld(t, 1)
	w.send(1, 1) // the head
	w.send(2000, 1000)
	wait := patience / 4
	c := w.config()
	c.MaxAhead, c.ParkAfter = 200, patience/40
	var mu sync.Mutex
	var calls []time.Time
	parked := false
	w.serve(c, func(_ *message.Message, key string) error {
		if key != "key-0" {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if calls = append(calls, time.Now()); len(calls) > 3 {
			return nil
		}
		return outbox.RetryAfter(errors.New("not yet"), wait)
	})
	eventually(t, func() bool {
		parked = parked || w.parked() > 0
		return parked && w.handled() >= w.settled-w.sent["key-0"]
	}, "it is parked, and the others go on")
	w.settles()
	mu.Lock()
	defer mu.Unlock()
	for i := 1; i <= 3; i++ {
		assert.GreaterOrEqual(t, calls[i].Sub(calls[i-1]), wait-time.Millisecond, "before call %d", i+1)
	}
}
