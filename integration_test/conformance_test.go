package integration_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/outboxtest"
	"github.com/millrace-go/watermill-outbox/queue"
)

// What a handle promises whatever is behind it: the same functions over Postgres and over the database in memory of
// package outboxtest. They see the outbox by outboxtest.Drain, which on Postgres is a forwarder. TestIBX does the same
// for the inbox.

// promise finds an empty outbox and leaves one.
type promise struct {
	name string
	test func(t *testing.T, s subject)
}

var promises = [][]promise{promisesOfTransactions, promisesOfHandlers, promisesOfStores}

// subject is what a promise is asked of: a handle, and another one on another database.
type subject struct{ db, other *outbox.DB }

func TestConformance(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	conforms(t, subject{newPgxHandle(t, newMigratedDatabase(t)).db, newPgxHandle(t, newMigratedDatabase(t)).db})
}

// TestConformanceInMemory needs no Postgres.
func TestConformanceInMemory(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	conforms(t, subject{outboxtest.NewDB(t), outboxtest.NewDB(t)})
}

func conforms(t *testing.T, s subject) {
	for _, some := range promises {
		for _, p := range some {
			t.Run(p.name, func(t *testing.T) { p.test(t, s) })
		}
	}
}

func (s subject) publisher(t testing.TB, cfg outbox.PublisherConfig) *outbox.Publisher {
	t.Helper()
	pub, err := outbox.NewPublisher(s.db, cfg, nil)
	require.NoError(t, err)
	return pub
}

func (s subject) store(t testing.TB, cfg queue.StoreConfig) *queue.Store {
	t.Helper()
	store, err := queue.NewStore(s.db, cfg, nil)
	require.NoError(t, err)
	return store
}

// leaves says which payloads leave now, in this order.
func (s subject) leaves(t testing.TB, payloads ...string) {
	t.Helper()
	assert.Equal(t, payloads, payloadsOf(outboxtest.Drain(t, s.db)))
}

func payloadsOf(msgs []outboxtest.Message) (payloads []string) {
	for _, msg := range msgs {
		payloads = append(payloads, string(msg.Payload))
	}
	return payloads
}

// ordered is a message of the one key whose order the promises look at.
func ordered(payload string) *message.Message {
	msg := newMessage(payload)
	outbox.SetKey(msg, "key")
	return msg
}

// sqlState is that of an error.
func sqlState(err error) string {
	var e interface{ SQLState() string }
	if errors.As(err, &e) {
		return e.SQLState()
	}
	return ""
}

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

// counting is a handler that counts its calls and returns what another returns.
func counting(calls *atomic.Int32, handler message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		calls.Add(1)
		return handler(msg)
	}
}

// answering returns one message.
func answering(msg *message.Message) ([]*message.Message, error) {
	return message.Messages{newMessage("answer to " + string(msg.Payload))}, nil
}

// publishing is a handler that publishes by itself and then fails.
func (s subject) publishing(t testing.TB, err error) message.HandlerFunc {
	pub := s.publisher(t, outbox.PublisherConfig{})
	return func(msg *message.Message) ([]*message.Message, error) {
		return nil, cmp.Or(pub.PublishContext(msg.Context(), "orders", newMessage("by itself")), err)
	}
}

var promisesOfHandlers = []promise{
	{"a message is handled once", func(t *testing.T, s subject) {
		var calls atomic.Int32
		msg := newMessage("a")
		got, err := outboxtest.Handle(t, s.db, counting(&calls, answering), msg, middleware.StackConfig{
			Outbox: middleware.OutboxConfig{Topic: "events"},
		})
		require.NoError(t, err)
		assert.True(t, got.Acked)
		require.Equal(t, []string{"answer to a"}, payloadsOf(got.Published))
		assert.Equal(t, "events", got.Published[0].Topic)
		assert.Equal(t, msg.UUID, got.Published[0].Metadata.Get(outbox.MetadataCausationID))
		for range 2 {
			got, err = outboxtest.Handle(t, s.db, counting(&calls, answering), msg, middleware.StackConfig{})
			require.NoError(t, err)
			assert.Equal(t, outboxtest.Handled{Acked: true}, got)
		}
		assert.EqualValues(t, 1, calls.Load())
		got, err = outboxtest.Handle(t, s.db, counting(&calls, answering), msg, middleware.StackConfig{Service: "another"})
		require.NoError(t, err)
		assert.Len(t, got.Published, 1, "another service")
		s.leaves(t, "answer to a", "answer to a")
	}},
	{"copies at once are handled once", func(t *testing.T, s subject) {
		var calls atomic.Int32
		var begun sync.WaitGroup
		begun.Add(8)
		msg, ended := newMessage("a"), make(chan error)
		for range 8 {
			go func() {
				begun.Done()
				_, err := outboxtest.Handle(t, s.db, counting(&calls, func(msg *message.Message) ([]*message.Message, error) {
					begun.Wait()
					return answering(msg)
				}), msg.Copy(), middleware.StackConfig{})
				ended <- err
			}()
		}
		for range 8 {
			require.NoError(t, <-ended)
		}
		assert.EqualValues(t, 1, calls.Load())
		s.leaves(t, "answer to a")
	}},
	{"a failed attempt leaves nothing and comes again", func(t *testing.T, s subject) {
		var calls atomic.Int32
		msg := newMessage("a")
		for range 3 {
			got, err := outboxtest.Handle(t, s.db, counting(&calls, s.publishing(t, errHandler)), msg, middleware.StackConfig{})
			require.ErrorIs(t, err, errHandler)
			assert.Equal(t, outboxtest.Handled{}, got)
		}
		require.PanicsWithError(t, errHandler.Error(), func() {
			_, _ = outboxtest.Handle(t, s.db, func(msg *message.Message) ([]*message.Message, error) {
				_, _ = s.publishing(t, nil)(msg)
				panic(errHandler)
			}, msg, middleware.StackConfig{})
		})
		got, err := outboxtest.Handle(t, s.db, counting(&calls, s.publishing(t, nil)), msg, middleware.StackConfig{})
		require.NoError(t, err)
		assert.True(t, got.Acked)
		assert.EqualValues(t, 4, calls.Load())
		s.leaves(t, "by itself")
	}},
	{"a message dies of its last attempt", func(t *testing.T, s subject) {
		var calls atomic.Int32
		msg, cfg := newMessage("a"), middleware.StackConfig{
			Outcomes: middleware.OutcomesConfig{MaxAttempts: 3, MinDeadAge: -1, DeadLetterTopic: "graves"},
		}
		handle := func() (outboxtest.Handled, error) {
			return outboxtest.Handle(t, s.db, counting(&calls, s.publishing(t, errHandler)), msg, cfg)
		}
		for range 2 {
			_, err := handle()
			require.ErrorIs(t, err, errHandler)
		}
		got, err := handle()
		require.NoError(t, err)
		assert.True(t, got.Acked)
		require.Len(t, got.Published, 1)
		assert.Equal(t, "graves", got.Published[0].Topic)
		assert.Equal(t, msg.UUID, got.Published[0].Metadata.Get(middleware.MetadataUUID))
		assert.Equal(t, errHandler.Error(), got.Published[0].Metadata.Get(middleware.MetadataReason))
		got, err = handle()
		require.NoError(t, err)
		assert.Equal(t, outboxtest.Handled{Acked: true}, got, "it is dead")
		assert.EqualValues(t, 3, calls.Load())

		cfg.Outcomes.MinDeadAge = time.Hour
		msg = newMessage("b")
		for range 5 {
			_, err := handle()
			require.ErrorIs(t, err, errHandler, "it fails for too short a time to be dead")
		}
		s.leaves(t, "a")
	}},
	{"what a handler says of its message", func(t *testing.T, s subject) {
		for name, want := range map[string]struct {
			err     error
			rolls   bool
			acked   bool
			letters int
		}{
			"poison":            {err: outbox.Poison(errHandler), acked: true, letters: 1},
			"already processed": {err: fmt.Errorf("%w: %w", outbox.ErrAlreadyProcessed, errHandler), acked: true},
			"rollback only":     {rolls: true, acked: true},
			"an error":          {err: errHandler},
		} {
			got, err := outboxtest.Handle(t, s.db, func(msg *message.Message) ([]*message.Message, error) {
				if want.rolls {
					require.NoError(t, outbox.SetRollbackOnly(msg.Context()))
				}
				return s.publishing(t, want.err)(msg)
			}, newMessage(name), middleware.StackConfig{})
			assert.Equal(t, want.acked, err == nil, name)
			assert.Equal(t, want.acked, got.Acked, name)
			assert.Len(t, got.Published, want.letters, name)
		}
		s.leaves(t, "poison")
	}},
	{"other content under a known key is told", func(t *testing.T, s subject) {
		told := 0
		cfg := middleware.StackConfig{Inbox: middleware.InboxConfig{
			CheckContent: true, Key: func(msg *message.Message) (string, error) { return msg.Metadata.Get("order"), nil },
			OnMismatch: func(context.Context, *message.Message) error { told++; return nil },
		}}
		for i, payload := range []string{"a", "a", "b"} {
			msg := newMessage(payload)
			msg.Metadata.Set("order", "4711")
			_, err := outboxtest.Handle(t, s.db, answering, msg, cfg)
			require.NoError(t, err)
			assert.Equal(t, i/2, told)
		}
		got, err := outboxtest.Handle(t, s.db, answering, newMessage("without an order"), cfg)
		require.NoError(t, err)
		assert.Equal(t, "dead_letters", got.Published[0].Topic, "without a key it is poison")
		assert.Len(t, outboxtest.Drain(t, s.db), 2)
	}},
}
