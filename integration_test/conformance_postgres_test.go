package integration_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/outboxtest"
)

// TestNewPostgresIsOfOneTest: tests at once on one database each drain their own messages and have tables of their own,
// and leave nothing behind.
func TestNewPostgresIsOfOneTest(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newPgxHandle(t, newDatabase(t))
	t.Run("at once", func(t *testing.T) {
		for i := range 3 {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				db, pool := outboxtest.NewPostgres(t, h.url)
				_, err := pool.Exec(t.Context(), "CREATE TABLE bookings (id text PRIMARY KEY)")
				require.NoError(t, err)
				pub, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, nil)
				require.NoError(t, err)
				own := fmt.Sprint("of ", i)
				require.NoError(t, outbox.InTx(t.Context(), db, func(ctx context.Context) error {
					tx, err := outbox.PgxTx(ctx)
					if err != nil {
						return err
					}
					if _, err := tx.Exec(ctx, "INSERT INTO bookings VALUES ('1')"); err != nil {
						return err
					}
					return pub.PublishContext(ctx, "orders", message.NewMessage(own, nil))
				}))
				drained := outboxtest.Drain(t, db)
				require.Len(t, drained, 1)
				assert.Equal(t, own, drained[0].UUID)
				assert.Empty(t, outboxtest.Drain(t, db))
			})
		}
	})
	assert.Zero(t, h.count(t, "SELECT count(*)::int FROM pg_namespace WHERE nspname LIKE 'outboxtest%'"))
}
