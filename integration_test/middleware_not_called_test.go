package integration_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe"
)

// delivering calls a stack around a handler and converts a panic to an error, as Watermill's Recoverer does.
func delivering(handler message.HandlerFunc, mws []message.HandlerMiddleware) func(msg *message.Message) error {
	handle := chain(handler, mws...)
	return func(msg *message.Message) (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v", p)
			}
		}()
		_, err = handle(msg.Copy())
		return err
	}
}

// reaching delivers until calls has increased: on a busy machine the time may run out before that.
func reaching(deliver func(*message.Message) error, calls *int) func(msg *message.Message) error {
	return func(msg *message.Message) (err error) {
		for before := *calls; *calls == before; {
			err = deliver(msg)
		}
		return err
	}
}

func nothing(*message.Message) ([]*message.Message, error) { return nil, nil }

// TestOnMismatchThatFailsIsCounted by the process, as the key belongs to another message: its wait grows, operators see
// it, and finally it is dead, with a dead letter of its own.
func TestOnMismatchThatFailsIsCounted(t *testing.T) {
	h := onPgx(t)
	for name, onMismatch := range map[string]func(ctx context.Context) error{
		"error":    func(context.Context) error { return errHandler },
		"panic":    func(context.Context) error { panic("boom") },
		"overtime": func(ctx context.Context) error { <-ctx.Done(); return nil },
		"poison":   func(context.Context) error { return outbox.Poison(errHandler) },
	} {
		w, logger, obs, calls := &waits{}, watermill.NewCaptureLogger(), &seen{}, 0
		cfg := middleware.StackConfig{
			ErrorHandler: middleware.ErrorHandlerConfig{MaxAttempts: 4, MinDeadAge: -1, Backoff: w.backoff()},
			Inbox: middleware.InboxConfig{
				Consumer: name, CheckContent: true,
				OnMismatch: func(ctx context.Context, _ *message.Message) error { calls++; return onMismatch(ctx) },
			},
		}
		pub, first := newOutboxPublisher(t, h.seenBy(t, obs)), newMessage(name)
		require.NoError(t, delivering(nothing, stackFor(t, pub, cfg, logger))(first), name)
		if name == "overtime" {
			cfg.Tx.Timeout = 100 * time.Millisecond
		}
		deliver := reaching(delivering(nothing, stackFor(t, pub, cfg, logger)), &calls)
		other := first.Copy()
		other.Payload = []byte(name + ", changed")
		if name != "poison" {
			for range 3 {
				require.Error(t, deliver(other), name)
			}
			if name != "overtime" {
				assert.Equal(t, []int{1, 2, 3}, w.all, "%s: the wait grows", name)
			}
			said := 0
			for _, line := range logger.Captured()[watermill.ErrorLogLevel] {
				if line.Msg == "handler not called: InboxConfig.OnMismatch failed: the message is retried after a growing wait" {
					said++
				}
			}
			assert.Equal(t, 1, said, "%s: one line", name)
		}
		letters := func() []string {
			return column[string](t, h, "select uuid from outbox where payload = convert_to($1, 'UTF8')", string(other.Payload))
		}
		require.Empty(t, letters(), name)
		require.NoError(t, deliver(other), "%s: acked", name)
		assert.Equal(t, observe.Dead, obs.last().Outcome, name)
		require.Len(t, letters(), 1, "%s: not forever", name)
		for len(letters()) < 2 { // another copy
			_ = deliver(other)
		}
		assert.Equal(t, letters()[0], letters()[1], "%s: dead letters of the same content have one UUID", name)
		if name == "poison" {
			third := first.Copy()
			third.Payload = []byte(name + ", changed again")
			require.NoError(t, deliver(third))
			assert.NotEqual(t, letters()[0], value[string](t, h,
				"select uuid from outbox where payload = convert_to($1, 'UTF8')", string(third.Payload)),
				"different content gets its own dead letter")
		}
		assert.Equal(t, 1, h.count(t, "select count(*) from inbox where consumer = 'shop/' || $1 and dead_at is null", name),
			"%s: the handled message stays handled", name)
	}
}

// TestACopyIsSkippedThoughOnBeginFails: the message was handled or is dead, so a failure no longer matters. If nacked,
// it would return forever, with its failures recorded nowhere.
func TestACopyIsSkippedThoughOnBeginFails(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		for name, onBegin := range map[string]func() error{
			"error": func() error { return errHandler },
			"panic": func() error { panic("boom") },
		} {
			for state, handler := range map[string]message.HandlerFunc{
				"processed": nothing,
				"dead":      func(*message.Message) ([]*message.Message, error) { return nil, outbox.Poison(errHandler) },
			} {
				fails, obs := false, &seen{}
				cfg := middleware.StackConfig{
					Inbox: middleware.InboxConfig{Consumer: name, CheckContent: true},
					Tx: middleware.TxConfig{OnBegin: func(context.Context, *message.Message) error {
						if fails {
							return onBegin()
						}
						return nil
					}},
				}
				logger := watermill.NewCaptureLogger()
				deliver := delivering(handler, stackFor(t, newOutboxPublisher(t, h.seenBy(t, obs)), cfg, logger))
				msg := newMessage(name)
				require.NoError(t, deliver(msg), name)
				fails = true
				require.NoError(t, deliver(msg), "%s of a %s message", name, state)
				if lines := logger.Captured()[watermill.ErrorLogLevel]; name == "panic" {
					assert.Contains(t, lines[len(lines)-1].Fields["stack"], "middleware_not_called_test.go")
				}
				assert.Equal(t, observe.Duplicate, obs.last().Outcome, "%s of a %s message", name, state)
				if state == "processed" { // the hash of a dead message is unknown
					msg.Payload = []byte("changed")
					require.Error(t, deliver(msg), "%s: different content is not a copy", name)
				}
			}
		}
	})
}

// TestOnBeginThatLeavesNothingToWorkWithIsCounted like one that returns an error: it swallowed the error of a failed
// statement, or used up the time.
func TestOnBeginThatLeavesNothingToWorkWithIsCounted(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		for name, onBegin := range map[string]func(ctx context.Context) error{
			"a failed statement": func(ctx context.Context) error { _ = h.execTx(ctx, `select 1/0`); return nil },
			"overtime":           func(ctx context.Context) error { <-ctx.Done(); return nil },
		} {
			w, logger, calls := &waits{}, watermill.NewCaptureLogger(), 0
			cfg := middleware.StackConfig{
				ErrorHandler: middleware.ErrorHandlerConfig{MaxAttempts: 3, MinDeadAge: -1, Backoff: w.backoff()},
				Inbox:        middleware.InboxConfig{Consumer: name},
				Tx: middleware.TxConfig{
					OnBegin: func(ctx context.Context, _ *message.Message) error { calls++; return onBegin(ctx) },
				},
			}
			if name == "overtime" {
				cfg.Tx.Timeout = 100 * time.Millisecond
			}
			deliver := reaching(delivering(nothing, stackFor(t, newOutboxPublisher(t, h), cfg, logger)), &calls)
			msg := newMessage(name)
			for n := 1; n <= 2; n++ {
				require.Error(t, deliver(msg), name)
			}
			assert.Equal(t, 2, h.count(t, "select attempts from inbox where message_id = $1", msg.UUID), name)
			if name != "overtime" {
				assert.Equal(t, []int{1, 2}, w.all, "%s: the wait grows", name)
			}
			if lines := logger.Captured()[watermill.ErrorLogLevel]; assert.Len(t, lines, 1, "%s: one line", name) {
				assert.Contains(t, lines[0].Msg, "handler not called: TxConfig.OnBegin failed", name)
			}
			require.NoError(t, deliver(msg), "%s: acked", name)
			assert.Equal(t, 1, h.count(t, "select count(*) from outbox where payload = convert_to($1, 'UTF8')", name),
				"%s: not forever", name)
		}
	})
}

// TestALetterThatCannotBeWrittenIsSeen in the inbox, and the handler is called less and less often.
func TestALetterThatCannotBeWrittenIsSeen(t *testing.T) {
	h := onPgx(t)
	h.exec(t, "alter table outbox add constraint no_letters check (topic <> 'dead_letters')")
	w := &waits{}
	deliver := delivering(func(*message.Message) ([]*message.Message, error) { return nil, outbox.Poison(errHandler) },
		stack(t, h, middleware.StackConfig{ErrorHandler: middleware.ErrorHandlerConfig{Backoff: w.backoff()}}))
	msg := newMessage("")
	for range 3 {
		require.ErrorIs(t, deliver(msg), errHandler)
	}
	assert.Equal(t, []int{1, 2, 3}, w.all, "the wait grows")
	assert.Equal(t, 3, h.count(t, "select attempts from inbox where dead_at is null"))
	lastError := value[string](t, h, "select last_error from inbox")
	assert.Contains(t, lastError, "dead letter not written: ")
	assert.Contains(t, lastError, "no_letters")
	assert.Contains(t, lastError, errHandler.Error())
}

// TestClassifyThatPanics is treated as Nack.
func TestClassifyThatPanics(t *testing.T) {
	h := onPgx(t)
	deliver := delivering(func(*message.Message) ([]*message.Message, error) { return nil, errHandler },
		stack(t, h, middleware.StackConfig{ErrorHandler: middleware.ErrorHandlerConfig{
			MaxAttempts: 2, MinDeadAge: -1, Classify: func(error) outbox.Decision { panic("boom") },
		}}))
	msg := newMessage("")
	require.ErrorIs(t, deliver(msg), errHandler)
	assert.Equal(t, 1, h.count(t, "select attempts from inbox"))
	require.NoError(t, deliver(msg))
	assert.Equal(t, 1, outboxed(t, h))
}

// TestARetryAfterErrorMadeByHand waits like one returned by RetryAfter.
func TestARetryAfterErrorMadeByHand(t *testing.T) {
	h := onPgx(t)
	w := &waits{}
	later := &outbox.RetryAfterError{Wait: -time.Hour}
	deliver := delivering(func(*message.Message) ([]*message.Message, error) { return nil, later },
		stack(t, h, middleware.StackConfig{ErrorHandler: middleware.ErrorHandlerConfig{Backoff: w.backoff()}}))
	require.ErrorIs(t, deliver(newMessage("")), error(later))
	assert.Equal(t, []int{1}, w.all, "the wait after a first failure")
}

// unsound returns errors that panic when they are inspected: nil pointers returned as errors.
func unsound() map[string]error {
	var later *outbox.RetryAfterError
	return map[string]error{
		"nil pointer": later, "wrapped": fmt.Errorf("wrapped: %w", later), "joined": errors.Join(errHandler, wrapped{later}),
	}
}

type wrapped struct{ error }

func (wrapped) Error() string   { return "wrapped" }
func (w wrapped) Unwrap() error { return w.error }

// met is the storage of a Deduplicator.
type met struct{ sync.Map }

func (m *met) IsDuplicate(_ context.Context, key string) (bool, error) {
	_, duplicate := m.LoadOrStore(key, true)
	return duplicate, nil
}

// TestWatermillsMiddlewaresInsideAreFound at the first message, before the handler can write: Retry would run its
// writes twice, and the others would commit the writes of a failed handler, or drop its message. A handler's own
// AddMiddleware is placed inside too.
func TestWatermillsMiddlewaresInsideAreFound(t *testing.T) {
	h := onPgx(t)
	newEffects(t, h)
	pub := newOutboxPublisher(t, h)
	poison, err := wmmiddleware.PoisonQueue(&published{}, "poison")
	require.NoError(t, err)
	retry := wmmiddleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond}
	decorated := func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) { return next(msg) }
	}
	for name, unsafe := range map[string]message.HandlerMiddleware{
		"Retry":        retry.Middleware,
		"PoisonQueue":  poison,
		"IgnoreErrors": wmmiddleware.NewIgnoreErrors([]error{errHandler}).Middleware,
		"Deduplicator": func(next message.HandlerFunc) message.HandlerFunc {
			return (&wmmiddleware.Deduplicator{Repository: &met{}}).Middleware(next)
		},
		"Duplicator": wmmiddleware.Duplicator,
	} {
		for where, own := range map[string][]message.HandlerMiddleware{
			"directly":   {unsafe},
			"in between": {wmmiddleware.CorrelationID, unsafe, wmmiddleware.Timeout(time.Minute), decorated},
		} {
			for does, use := range map[string]func(msg *message.Message) error{
				"writes": func(msg *message.Message) error { return write(h, msg) },
				"publishes": func(msg *message.Message) error {
					return pub.PublishContext(msg.Context(), "events", newMessage(""))
				},
				"nests": func(msg *message.Message) error {
					return outbox.InTx(msg.Context(), h.db, func(ctx context.Context) error {
						return h.execTx(ctx, `insert into effects (message_id) values ($1)`, msg.UUID)
					})
				},
			} {
				logger, f := watermill.NewCaptureLogger(), newFeed()
				cfg := middleware.StackConfig{ErrorHandler: middleware.ErrorHandlerConfig{
					MaxAttempts: 1, MinDeadAge: -1, Backoff: outbox.Backoff{Initial: time.Millisecond, Max: 10 * time.Millisecond},
				}}
				router := startRouter(t, func(r *message.Router) {
					r.AddMiddleware(stackFor(t, pub, cfg, logger)...)
					handler := r.AddConsumerHandler(name, "orders", f, func(msg *message.Message) error {
						if err := use(msg); err != nil {
							return err
						}
						return errHandler
					})
					handler.AddMiddleware(own...)
				})
				msg := newMessage(name)
				for range 2 {
					assert.False(t, f.deliver(t, msg.Copy()), "%s %s: not acked", name, where)
				}
				require.NoError(t, router.Close())
				assert.Zero(t, h.count(t, "select count(*) from effects"), "%s %s %s", name, where, does)
				assert.Zero(t, outboxed(t, h), "%s %s %s", name, where, does)
				lines := logger.Captured()[watermill.ErrorLogLevel]
				if assert.Len(t, lines, 1, "%s %s %s", name, where, does) {
					assert.ErrorContains(t, lines[0].Err, "Watermill's "+name, where)
				}
			}
		}
	}
}

// notedWork is the recorded state of a message of the queue.
type notedWork struct {
	core.Work
	err error
}

func (n *notedWork) Note(err error) { n.err = err }

// TestWatermillsMiddlewaresInsideChargeNothing to a message of the queue if Tx is outermost.
func TestWatermillsMiddlewaresInsideChargeNothing(t *testing.T) {
	h := onPgx(t)
	retry := wmmiddleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond}
	for where, own := range map[string][]message.HandlerMiddleware{
		"directly":   {retry.Middleware},
		"in between": {wmmiddleware.CorrelationID, retry.Middleware},
	} {
		msg, work := newMessage(""), &notedWork{}
		msg.SetContext(core.WithWork(t.Context(), msg, work))
		handler := func(msg *message.Message) ([]*message.Message, error) {
			_, err := outbox.PgxTx(msg.Context())
			return nil, err
		}
		_, err := chain(handler, append([]message.HandlerMiddleware{newTx(t, h, middleware.TxConfig{})}, own...)...)(msg)
		require.ErrorContains(t, err, "Watermill's Retry", where)
		var later *outbox.RetryAfterError
		if assert.ErrorAs(t, work.err, &later, where) {
			assert.Positive(t, later.Wait, where)
			assert.ErrorContains(t, work.err, "Watermill's Retry", where)
		}
	}
}

// TestWatermillsMiddlewaresWhereTheyBelong are accepted: outside, and around a part of a handler with its own
// savepoint.
func TestWatermillsMiddlewaresWhereTheyBelong(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		newEffects(t, h)
		retry := wmmiddleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond}
		ignore := wmmiddleware.NewIgnoreErrors([]error{errHandler})
		mws := stack(t, h, middleware.StackConfig{})
		calls := 0
		twice := func(msg *message.Message) ([]*message.Message, error) {
			if calls++; calls%2 == 1 {
				return failing(book(h), errHandler)(msg)
			}
			return book(h)(msg)
		}
		msg := newMessage("")
		_, err := chain(twice, append([]message.HandlerMiddleware{ignore.Middleware, retry.Middleware}, mws...)...)(msg)
		require.NoError(t, err)
		assert.Equal(t, 1, effects(t, h, msg))
		assert.Equal(t, 2, calls)

		msg = newMessage("")
		nested := newTx(t, h, middleware.TxConfig{})
		_, err = chain(twice, append(append([]message.HandlerMiddleware{}, mws...), wmmiddleware.CorrelationID)...)(
			newMessage(""))
		require.ErrorIs(t, err, errHandler)
		calls = 0
		_, err = chain(twice, newTx(t, h, middleware.TxConfig{}), wmmiddleware.CorrelationID, retry.Middleware, nested)(msg)
		require.NoError(t, err)
		assert.Equal(t, 1, effects(t, h, msg), "each attempt in a savepoint")
	})
}
