package integration_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/queue"
)

// TestARenewalThatHangsIsTriedAgain: a renewal without a reply is abandoned after a third of the lease, so that the
// next one keeps the lease and the handler continues.
func TestARenewalThatHangsIsTriedAgain(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	h, gate := newStatementGate(t, newMigratedDatabase(t))
	defer gate.releaseAll()
	other := newPgxHandle(t, h.url)
	s := storeOn(t, h, quickStore())
	storeAll(t, s, items("orders", 1)...)
	var runs int
	tries := []chan struct{}{nil, make(chan struct{}), make(chan struct{})}
	begun, ended := make(chan struct{}), make(chan error, 1)
	gate.onRun(sqltext.RenewLeases, func() {
		if runs < len(tries) && tries[runs] != nil {
			close(tries[runs])
		}
		runs++
	})
	cfg := quickDispatcher(map[string]queue.Handler{
		"orders": {Detached: true, Timeout: -1, Handle: func(ctx context.Context, _ *queue.Message) error {
			close(begun)
			select {
			case <-tries[2]: // by now the original lease has expired
			case <-ctx.Done():
			}
			ended <- context.Cause(ctx)
			return ctx.Err()
		}},
	})
	cfg.LeaseTTL = 6 * time.Second
	dispatching(t, s, cfg)
	within(t, "the message", begun)
	end := openTx(t, other, func(ctx context.Context) error { return other.execTx(ctx, "lock table inbox_queue") })
	unlock := sync.OnceFunc(func() { end(false) })
	defer unlock()
	select {
	case <-tries[1]: // the second attempt, while the first has had no reply
	case err := <-ended:
		require.NoError(t, err)
	}
	unlock()
	require.NoError(t, within(t, "the handler's end", ended))
	untilState(t, s, itemID("orders", 0), queue.Done)
}
