package integration_test

import (
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outboxmw "github.com/millrace-go/watermill-outbox/middleware"
)

// TestHandlerPool: handlers that wait for a connection because the pool has fewer than there are handlers are named, by
// a line of their own process and by Doctor.
func TestHandlerPool(t *testing.T) {
	t.Parallel()
	const connections, handlers = 4, 9
	h := pgxHandle(t, "handlers", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.MaxConns = connections })
	log := newLogCapture(t)
	mw, err := outboxmw.Tx(h.db, outboxmw.TxConfig{}, log)
	require.NoError(t, err)
	said := func() int { return log.count("pool is too small for the handlers") }
	release := make(chan struct{})
	handle := mw(func(msg *message.Message) ([]*message.Message, error) {
		<-release
		return nil, nil
	})
	var running sync.WaitGroup
	work := func(n int) {
		for range n {
			running.Go(func() {
				_, err := handle(message.NewMessage(watermill.NewUUID(), nil))
				assert.NoError(t, err)
			})
		}
	}
	work(connections)
	assert.Zero(t, said(), "as many as there are connections")
	work(handlers - connections)
	eventually(t, func() bool { return said() == 1 }, "a line names the pool")
	close(release)
	running.Wait()
	assert.Equal(t, 1, said())
	startForwarder(t, h, quickConfig()) // and says it in its row
	f := ails(t, h, "handler_pool")
	assert.Regexp(t, `up to [5-9] handlers were at work concurrently .* whose pool has 4 connections`, f.Evidence)
}
