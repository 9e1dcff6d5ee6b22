//go:build unix

package integration_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	outbox "github.com/millrace-go/watermill-outbox"
)

// TestParkKeepsRetryAfter: a message whose handler asked for a later retry is parked as any other that fails, so that
// its partition goes on, and waits there as long as the handler has said.
func TestParkKeepsRetryAfter(t *testing.T) {
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
