//go:build unix

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/queue"
)

var staleVerbs = []string{"abandon", "ack", "fail", "release", "renew"}

// runStaleChild has a message in a handler and others by hand, until its lease of the first is lost. Then it settles
// them all, and says what it is told.
func runStaleChild(ctx context.Context, db *outbox.DB) error {
	logger := watermill.NewStdLogger(true, false)
	store, err := queue.NewStore(db, queue.StoreConfig{}, logger)
	if err != nil {
		return err
	}
	begun, lost := make(chan struct{}), make(chan error, 1)
	d, err := queue.NewDispatcher(store, queue.DispatcherConfig{
		Concurrency: 1, LeaseTTL: 5 * time.Second, PollInterval: 50 * time.Millisecond,
		Handlers: map[string]queue.Handler{
			"calls": {Detached: true, Timeout: -1, Handle: func(ctx context.Context, _ *queue.Message) error {
				close(begun)
				<-ctx.Done()
				lost <- context.Cause(ctx)
				return nil // it has finished all the same
			}},
		},
	}, logger)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	<-begun // and has no place for more
	owner, left := queue.NewOwner(), len(staleVerbs)
	for left > 0 {
		msgs, err := store.Claim(ctx, queue.Claim{
			Owner: owner, LeaseTTL: time.Second, Limit: left, Topics: []string{"orders"},
		})
		if err != nil {
			return err
		}
		left -= len(msgs)
	}
	fmt.Println("it has them all")
	fmt.Println("handler:", <-lost)
	for _, verb := range staleVerbs {
		id, n := item("stale", verb).ID, 0
		switch verb {
		case "ack":
			n, err = store.Ack(ctx, owner, id)
		case "abandon":
			n, err = store.Abandon(ctx, queue.Abandon{Owner: owner}, id)
		case "fail":
			n, err = store.Fail(ctx, queue.Fail{Owner: owner}, id)
		case "release":
			n, err = store.Release(ctx, owner, id)
		case "renew":
			var ours []queue.ID
			ours, err = store.Renew(ctx, queue.Renew{Owner: owner, LeaseTTL: time.Hour}, id)
			n = len(ours)
		}
		fmt.Println(verb+":", n, err)
	}
	return errors.Join(d.Close(), <-ended)
}

// TestStoppedProcessChangesNothing: a process stands still until its leases are over and its messages are another's.
// When it goes on, what it had, in a handler or by hand, stays as it is, and it is told so.
func TestStoppedProcessChangesNothing(t *testing.T) {
	h := onPgx(t)
	store, owner := newStore(t, h, queue.StoreConfig{Backoff: outbox.Backoff{Initial: -1}}), queue.NewOwner()
	enqueued(t, store, items("calls", 1)...)
	for _, verb := range staleVerbs {
		enqueued(t, store, item("stale", verb))
	}
	p := startQueueProcess(t, queueChild{URL: h.url, Dispatchers: 1, Concurrency: 1, Stale: true})
	eventually(t, func() bool {
		return strings.Contains(p.log.String(), "it has them all")
	}, "the process has them all: %s", p.log)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	var msgs []queue.Message
	eventually(t, func() bool {
		_, err := store.ReapExpired(t.Context())
		require.NoError(t, err)
		msgs = append(msgs, claimed(t, store, owner, 10)...)
		return len(msgs) == 1+len(staleVerbs)
	}, "they are another's")
	rows := func() []string { return column[string](t, h, "select q::text from inbox_queue q order by message_id") }
	before := rows()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
	select {
	case <-p.gone:
	case <-time.After(patience):
		t.Fatalf("the process does not end: %s", p.log)
	}
	require.NoError(t, p.err, p.log)
	assert.Equal(t, before, rows())
	for _, verb := range staleVerbs {
		assert.Contains(t, p.log.String(), verb+": 0 <nil>\n")
	}
	assert.Contains(t, p.log.String(), "handler: "+queue.ErrLeaseLost.Error())
	assert.Contains(t, p.log.String(), "leases lost before the ack: nothing changed")
	settles(t, len(msgs))(store.Ack(t.Context(), owner, idsOf(msgs)...))
}
