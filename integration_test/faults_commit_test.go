//go:build unix

package integration_test

import (
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/middleware"
)

// TestUnknownCommitIsHarmless breaks the connection while COMMIT is in flight, on its way to the server or back, and
// redelivers the message.
func TestUnknownCommitIsHarmless(t *testing.T) {
	parallel(t)
	overACut(t, "request lost", (*proxy).cutAtCommit, false)
	overACut(t, "answer lost", func(p *proxy) { p.cutAtCommitted.Store(true) }, true)
}

// TestSavepointThatCannotBeUndone breaks the connection while a nested transaction rolls back whose failure the handler
// tolerates. The handler returns nil, but none of its writes are committed.
func TestSavepointThatCannotBeUndone(t *testing.T) {
	parallel(t)
	undo := "rollback to savepoint"
	overACut(t, "", func(p *proxy) { p.cutAtSaid.Store(&undo) }, false)
}

// overACut delivers a message while the connection breaks, which must fail, and then again, with each driver.
func overACut(t *testing.T, what string, cut func(*proxy), committed bool) {
	for i, name := range []string{"pgx", "sql-pgx", "sql-pq"} {
		t.Run(what+" "+name, func(t *testing.T) {
			if name != "pgx" {
				extended(t)
			}
			w := newCrashWorld(t, newPgxHandle(t, newDatabase(t)), 1)
			proxy := newProxy(t, w.h.url)
			h := openHandles(t, proxy.url)[i]
			if name == "pgx" { // pgx sends COMMIT as text each time
				h = newPgxHandle(t, proxy.url+"&default_query_exec_mode=exec")
			}
			shop, err := newShop(h.db)
			require.NoError(t, err)
			handler := chain(func(msg *message.Message) ([]*message.Message, error) {
				return shop.book(msg.Context(), msg.UUID, string(msg.Payload))
			}, stackFor(t, shop.pub, middleware.StackConfig{
				Inbox: middleware.InboxConfig{Consumer: consumer}, Outbox: middleware.OutboxConfig{Topic: eventsTopic},
			}, nil)...)
			deliver := func(id string) error {
				produced, err := handler(message.NewMessage(id, message.Payload("key-0")))
				assert.Empty(t, produced)
				return err
			}
			count := func(query string) int { return w.h.count(t, query) }

			require.NoError(t, deliver("order-1"))
			cut(proxy)
			failure := deliver("order-2")
			require.EqualValues(t, 1, proxy.cuts.Load(), "nothing was cut")
			require.Error(t, failure)
			assert.Equal(t, what != "", errors.Is(failure, outbox.ErrCommitUnknown), failure)
			booked := 1
			if committed {
				booked = 2
			}
			assert.Equal(t, booked, count(`select count(*) from bookings`))
			assert.Equal(t, booked, count(`select count(*) from inbox where processed_at is not null`))
			w.check("after the cut")

			for range 2 {
				require.NoError(t, deliver("order-2"))
				assert.Equal(t, 2, count(`select count(*) from bookings`))
				assert.Equal(t, 4, count(`select count(*) from outbox`))
				w.check("after the redelivery")
			}
		})
	}
}
