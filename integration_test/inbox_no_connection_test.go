package integration_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/inbox"
)

// TestNoConnectionForAHandler: messages whose handlers are not called, because others have all connections of a pool that is too
// small, are not charged for that.
func TestNoConnectionForAHandler(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	const conns, messages = 3, 16
	url := newMigratedDatabase(t)
	h := pgxHandle(t, "pgx", url, func(cfg *pgxpool.Config) { cfg.MaxConns = conns })
	look := newPgxHandle(t, url)
	cfg := quickStore()
	cfg.MaxAttempts = 100
	storeAll(t, storeOn(t, look, cfg), items("orders", messages)...)

	var calls atomic.Int64
	goOn := make(chan struct{})
	log := newLogCapture(t)
	d, err := inbox.NewDispatcher(storeOn(t, h, cfg), quickDispatcher(map[string]inbox.Handler{"orders": {
		Timeout: 300 * time.Millisecond,
		Handle: func(context.Context, *inbox.Message) error {
			if calls.Add(1) <= conns {
				<-goOn
			}
			return nil
		},
	}}), log)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- d.Run(context.Background()) }()
	t.Cleanup(func() {
		assert.NoError(t, d.Close())
		assert.NoError(t, <-ended)
	})
	eventually(t, func() bool { return log.count("connections of the pool are in use") >= messages-conns }, "they find no connection")
	assert.Zero(t, look.count(t, `select sum(attempts)::int from inbox_queue`), "they are charged though their handlers were not called")
	close(goOn)
	eventually(t, func() bool {
		return look.count(t, `select count(*)::int from inbox_queue where state = 'processing'`) == 0
	}, "all are settled")
	assert.Equal(t, messages, look.count(t, `select count(*)::int from inbox_queue where state = 'done'`))
}
