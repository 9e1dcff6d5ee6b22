//go:build unix

package integration_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
)

// TestParkRetryAfter: a key whose handler asks for a later retry is left alone for that long in the park too.
func TestParkRetryAfter(t *testing.T) {
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

// TestParkCloseWhilePostgresHangs: the end of a subscription does not wait for it.
func TestParkCloseWhilePostgresHangs(t *testing.T) {
	t.Parallel()
	w := newInboundWorld(t, 1)
	w.send(1000, 20)
	c, _ := w.parks()
	c.CloseTimeout = 2 * time.Second
	proxy := newSwitchProxy(t, w.h.url)
	s, err := startInbound(newPgxHandle(t, proxy.url), c, failsUntilMended(w.h), watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(s.close)
	w.awaitParked()
	proxy.freeze()
	t.Cleanup(proxy.thaw)
	begun := time.Now()
	require.NoError(t, s.sub.Close())
	assert.Less(t, time.Since(begun), c.CloseTimeout+5*time.Second+patience/10)
}
