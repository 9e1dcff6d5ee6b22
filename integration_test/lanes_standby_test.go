package integration_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/observe"
)

// settledCounter is an observer that counts what was settled as published.
type settledCounter struct {
	deaf
	n atomic.Int64
}

func (c *settledCounter) SettleEnd(_ context.Context, end observe.SettleEnd) {
	if end.Err == nil {
		c.n.Add(int64(end.Done))
	}
}

// deaf is an observer of engines that heeds nothing.
type deaf struct{}

func (deaf) ReadEnd(context.Context, observe.ReadEnd)       {}
func (deaf) SettleEnd(context.Context, observe.SettleEnd)   {}
func (deaf) CleanEnd(context.Context, observe.CleanEnd)     {}
func (deaf) LanesOwned(context.Context, observe.LanesOwned) {}

// TestStandbyIsNotRead turns the server into a standby under a forwarder that has messages to publish, and promotes it.
func TestStandbyIsNotRead(t *testing.T) {
	extended(t)
	t.Parallel()
	noLeaks(t)
	server, h := ownMigratedServer(t)
	reads := make(chan error, 1000)
	cfg := quickConfig()
	h = h.seenBy(t, readErrors{errs: reads})
	w := startForwarderOn(t, h, cfg, nil)
	w.publish(t, "orders", "K", "K-1")
	w.arrives(t, "K-1")
	w.answers(func(string, *message.Message) error { return errRefused })
	w.publish(t, "orders", "K", "K-2", "K-3")
	w.wait(t, "K-2 is tried", func() bool { return w.triedTimes("K-2") > 0 })

	dir := value[string](t, h, "show data_directory")
	require.NoError(t, server.Stop())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "standby.signal"), nil, 0o644))
	require.NoError(t, server.Restart(t.Context()))
	h.pool.Reset()
	require.True(t, value[bool](t, h, "select pg_is_in_recovery()"))

	deadline := time.After(patience)
	for refused := 0; refused < 3; {
		select {
		case err := <-reads: // there may be some from before
			require.False(t, err == nil && refused > 0, "a read of a standby succeeded")
			if errors.Is(err, forwarder.ErrStandby) {
				refused++
			}
		case <-deadline:
			t.Fatal("the standby is not refused")
		}
	}
	assert.Equal(t, []string{"K-1"}, w.payloads())
	other, err := forwarder.New(h.db, newFakeBroker(), quickConfig(), w.log)
	require.NoError(t, err)
	require.ErrorContains(t, other.Run(t.Context()), "standby")

	w.answers(nil)
	require.True(t, value[bool](t, h, "select pg_promote()"))
	w.arrives(t, "K-2", "K-3")
	assert.Equal(t, numbered("K-", 1, 3), w.payloads())
}

// readErrors is an observer that passes on how reads ended.
type readErrors struct {
	deaf
	errs chan error
}

func (r readErrors) ReadEnd(_ context.Context, end observe.ReadEnd) {
	select {
	case r.errs <- end.Err:
	default:
	}
}
