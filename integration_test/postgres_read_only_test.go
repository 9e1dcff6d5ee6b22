package integration_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/queue"
)

// TestQueueOfReadOnlyServer is TestReadOnlyServer for those who store and handle messages: connections to a server that
// was demoted are replaced when a statement learns of it, those of a process that only stores too.
func TestQueueOfReadOnlyServer(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	url := newMigratedDatabase(t)
	writer, worker, admin := newPgxHandle(t, url), newPgxHandle(t, url), newPgxHandle(t, url)
	store := storeOn(t, writer, quickStore())
	cfg := quickDispatcher(map[string]queue.Handler{"orders": {Handle: func(context.Context, *queue.Message) error {
		return nil
	}}})
	cfg.CleanInterval = -1
	cfg.LeaseTTL = 50 * time.Minute // nor does anything else run but claims
	dispatching(t, storeOn(t, worker, quickStore()), cfg)
	enqueued := func(i int) error {
		_, err := store.Enqueue(t.Context(), items("orders", i+1)[i])
		return err
	}
	assert.NoError(t, enqueued(0))
	untilState(t, storeOn(t, admin, quickStore()), itemID("orders", 0), queue.Done)

	database := value[string](t, admin, "select quote_ident(current_database())")
	admin.exec(t, "alter database "+database+" set default_transaction_read_only = on")
	before := worker.pool.Stat().NewConnsCount()
	admin.exec(t, "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "+
		"and pid <> pg_backend_pid()")
	eventually(t, func() bool { return text.SQLState(enqueued(1)) == drive.ReadOnlyServer }, "it cannot be written to")
	eventually(t, func() bool { return worker.pool.Stat().NewConnsCount() > before }, "claims have a connection to it")
	eventually(t, func() bool {
		_, err := (*core.DB)(admin.db).Exec(t.Context(), "alter database "+database+" reset default_transaction_read_only")
		return err == nil
	}, "it can be written to again") // connections that were made meanwhile still cannot
	eventually(t, func() bool { return enqueued(1) == nil }, "messages are stored again")
	untilState(t, storeOn(t, newPgxHandle(t, url), quickStore()), itemID("orders", 1), queue.Done)
}
