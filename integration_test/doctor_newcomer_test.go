package integration_test

import (
	"context"
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/nats"
	"github.com/millrace-go/watermill-outbox/schema"
)

// TestMistakesOfANewcomer makes the ten most likely ones, and reads what is said of each.
func TestMistakesOfANewcomer(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	said := func(t *testing.T, text string, parts ...string) {
		t.Helper()
		for _, part := range parts {
			assert.Contains(t, text, part)
		}
	}
	publish := func(t *testing.T, h handle, topic string, msg *message.Message) error {
		t.Helper()
		pub := newOutboxPublisher(t, h)
		return outbox.InTx(t.Context(), h.db, func(ctx context.Context) error { return pub.PublishContext(ctx, topic, msg) })
	}

	t.Run("forgot Migrate", func(t *testing.T) {
		h := newPgxHandle(t, newDatabase(t))
		said(t, publish(t, h, "orders", newMessage("")).Error(), "outbox", "schema.Migrate")
		said(t, newForwarder(t, h, &published{}, forwarder.Config{}).Run(t.Context()).Error(), "schema.Migrate")
	})
	t.Run("middlewares in the wrong order", func(t *testing.T) {
		h := newPgxHandle(t, newMigratedDatabase(t))
		newEffects(t, h)
		reversed := stack(t, h, middleware.StackConfig{})
		slices.Reverse(reversed)
		_, err := chain(book(h), reversed...)(newMessage(""))
		said(t, err.Error(), "add middleware.Tx before", "middleware.Stack")
	})
	t.Run("forgot the forwarder", func(t *testing.T) {
		h := newPgxHandle(t, newMigratedDatabase(t))
		require.NoError(t, publish(t, h, "orders", newMessage("")))
		f := ails(t, h, "forwarders")
		said(t, f.Cure, "forwarder")
		assert.Regexp(t, "no message has been ready for more than 5s|messages of topic .* have been ready", f.Evidence)
	})
	t.Run("a publisher whose errors nobody knows", func(t *testing.T) {
		h := newPgxHandle(t, newMigratedDatabase(t))
		log := newLogCapture(t)
		broker := newFakeBroker()
		broker.answers(func(string, *message.Message) error { return errOdd })
		f, err := forwarder.New(h.db, broker, shortLease(quickConfig()), log)
		require.NoError(t, err)
		require.NoError(t, publish(t, h, "orders", newMessage("")))
		runInBackground(t, f)
		said(t, ails(t, h, "classify").Cure, "forwarder.Config.Classify", "package kafka or nats")
	})
	t.Run("a mistyped key", func(t *testing.T) {
		h := newPgxHandle(t, newMigratedDatabase(t))
		for _, name := range []string{"outbox_kye", "outbox-key", "Outbox_Key"} {
			msg := newMessage("")
			msg.Metadata.Set(name, "order-1")
			said(t, publish(t, h, "orders", msg).Error(), name, "outbox_key")
		}
	})
	t.Run("published outside of a transaction", func(t *testing.T) {
		h := newPgxHandle(t, newMigratedDatabase(t))
		msg := newMessage("")
		msg.SetContext(t.Context())
		err := newOutboxPublisher(t, h).Publish("orders", msg)
		require.ErrorIs(t, err, outbox.ErrNoTx)
		said(t, err.Error(), "PublishContext", "outbox.InTx", "WithoutTx")
	})
	t.Run("the broker has no such topic", func(t *testing.T) {
		h := newPgxHandle(t, newMigratedDatabase(t))
		require.NoError(t, publish(t, h, "ordres", newMessage("")))
		log := newLogCapture(t)
		pub, err := nats.NewPublisher(nats.PublisherConfig{URL: natsServer(t).URL()}, log)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, pub.Close()) })
		f, err := forwarder.New(h.db, pub, forwarder.Config{}, log)
		require.NoError(t, err)
		runInBackground(t, f)
		eventually(t, func() bool {
			return log.count("create a stream with this subject") > 0
		}, "the log does not say what to do")
	})
	t.Run("a wrong DSN", func(t *testing.T) {
		pool, err := pgxpool.New(t.Context(), "postgres://nobody:canary@127.0.0.1:1/shop")
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
		require.NoError(t, err)
		_, err = schema.Migrate(t.Context(), db, schema.MigrateConfig{})
		said(t, err.Error(), "127.0.0.1:1", "shop")
		assert.NotContains(t, err.Error(), "canary")
	})
	t.Run("a pool that is too small", func(t *testing.T) {
		h := pgxHandle(t, "small", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
		runInBackground(t, newForwarder(t, h, &published{}, forwarder.Config{}))
		said(t, ails(t, h, "pool").Cure, "give the pool 2 connections, and one more for each handler "+
			"that runs at the same time")
	})
	t.Run("a handler beside the transaction", func(t *testing.T) {
		// Nothing can notice it; docs/guides/how-it-works.md says so. This is what it costs: the write stays when the rest is
		// rolled back.
		h := newPgxHandle(t, newMigratedDatabase(t))
		h.exec(t, "CREATE TABLE beside (id text)")
		msg := newMessage("")
		_, err := chain(func(msg *message.Message) ([]*message.Message, error) {
			h.exec(t, "INSERT INTO beside VALUES ('written through the pool')")
			return nil, assert.AnError
		}, newTx(t, h, middleware.TxConfig{}))(msg)
		require.ErrorIs(t, err, assert.AnError)
		assert.Equal(t, 1, h.count(t, "SELECT count(*) FROM beside"))
		said(t, documents(t)["docs/guides/how-it-works.md"], "through the pool instead of `PgxTx` or `SQLTx`: "+
			"nothing can notice that")
	})
}
