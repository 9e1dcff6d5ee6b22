package middleware

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

const (
	defaultTimeout = 30 * time.Second
	defaultRetries = 3
)

// TxConfig configures Tx. The zero value is ready for use.
type TxConfig struct {
	// Isolation is the isolation level; default: the server's, normally READ COMMITTED. Serialization failures are
	// retried.
	Isolation sql.IsolationLevel
	// Timeout bounds one attempt, from BEGIN to COMMIT; default 30 s, -1 none. The deadline of the message's context
	// applies too; its cancellation does not. If the handler ignores the end of its context, the transaction is rolled
	// back at most 5 s later, so that its locks block nobody.
	Timeout time.Duration
	// MaxRetries is the number of retries after a serialization failure or deadlock, before a nack; default 3, -1 none.
	MaxRetries int
	// Backoff is the wait before each retry; default 10 ms doubling to 1 s.
	Backoff outbox.Backoff
	// OnBegin runs first in each transaction, for SET LOCAL or a tenant's search_path; default none. An error or a failed
	// statement fails the message.
	OnBegin func(ctx context.Context, msg *message.Message) error
	// JoinContext joins a transaction in the message's context, behind a savepoint and without retries; default off.
	// Set it only if the code that began the transaction waits for the handler.
	JoinContext bool
}

func (c *TxConfig) setDefaults() {
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.MaxRetries == 0 {
		c.MaxRetries = defaultRetries
	}
	c.Backoff = outbox.Backoff(core.Backoff(c.Backoff).WithDefaults(10*time.Millisecond, time.Second))
}

func (c TxConfig) validate() error {
	switch c.Isolation {
	case sql.LevelDefault, sql.LevelReadUncommitted, sql.LevelReadCommitted,
		sql.LevelRepeatableRead, sql.LevelSnapshot, sql.LevelSerializable:
	default:
		return fmt.Errorf("TxConfig.Isolation is %s, which Postgres does not have", c.Isolation)
	}
	switch {
	case c.Timeout < -1:
		return fmt.Errorf("TxConfig.Timeout is %s: use -1 for none", c.Timeout)
	case c.MaxRetries < -1:
		return fmt.Errorf("TxConfig.MaxRetries is %d: use -1 for none", c.MaxRetries)
	}
	return core.Backoff(c.Backoff).Validate("TxConfig.Backoff")
}

// Tx runs the handler in a transaction of db and commits it when the handler returns nil. The handler finds the
// transaction in the message's context (outbox.PgxTx, outbox.SQLTx). An error or a panic rolls it back and is passed
// on.
//
// Each attempt gets its own copy of the message. An Ack of the copy has no effect, and a Nack fails the attempt with
// outbox.ErrNacked even if the handler returns nil. Its context has the values and the deadline of the message's
// context, but is not cancelled with it, because a closing Router cancels the contexts of messages in flight, which
// must still be able to commit.
//
// Within another Tx the inner one is a savepoint and does not retry. Other transactions in the message's context are
// ignored unless TxConfig.JoinContext is set, because in-process Pub/Subs pass contexts on. The transaction of a
// watermill-sql subscriber is never joined; docs/reference/architecture.md has the reason.
//
// After outbox.SetRollbackOnly the message is acked although nothing was committed, and the returned messages are
// dropped. Tx returns errors of the handler and of outbox.InTx. The constructor returns outbox.ErrNoDB or an error that
// names an invalid field. If logger is nil, the logger of db is used.
func Tx(db *outbox.DB, cfg TxConfig, logger watermill.LoggerAdapter) (message.HandlerMiddleware, error) {
	cfg.setDefaults()
	if err := errors.Join((*core.DB)(db).Check(), cfg.validate()); err != nil {
		return nil, err
	}
	return func(next message.HandlerFunc) message.HandlerFunc {
		t := &transactor{db: (*core.DB)(db), cfg: cfg, logger: (*core.DB)(db).Logger(logger)}
		t.inspections.Store(maxInspections)
		if err := unsafeWithin(core.UnsafeFunc(next)); err != nil {
			t.unsafe.Store(&err)
		}
		return around("Tx", t.handle)(next)
	}, nil
}

// maxInspections is how many transactions of a handler are inspected for middlewares between Tx and the handler. One is
// enough if the handler uses its transaction in its own goroutine.
const maxInspections = 100

// transactor is Tx around one handler.
type transactor struct {
	db          *core.DB
	cfg         TxConfig
	logger      watermill.LoggerAdapter
	logOwnTx    sync.Once
	inspections atomic.Int32 // left
	unsafe      atomic.Pointer[error]
}

// inspect finds a Watermill middleware between Tx and the handler that would make Tx commit failures. It runs when the
// handler first uses its transaction, because only then is the middleware on the stack.
func (t *transactor) inspect() error {
	if err := t.misplaced(); err != nil || t.inspections.Add(-1) < 0 {
		return err
	}
	name, known := core.UnsafeBetween()
	if err := unsafeWithin(name); err != nil {
		t.unsafe.Store(&err)
	} else if known {
		t.inspections.Store(0)
	}
	return t.misplaced()
}

func (t *transactor) misplaced() error {
	if err := t.unsafe.Load(); err != nil {
		return *err
	}
	return nil
}

func (t *transactor) handle(next message.HandlerFunc, msg *message.Message) (produced []*message.Message, err error) {
	ctx, h, outermost := handlingOf(msg)
	if !outermost {
		return t.attempts(ctx, next, msg, h)
	}
	ctx = started(ctx, t.db, "", msg, time.Time{})
	finished := false
	defer func() {
		cause := err
		if !finished {
			cause = h.panicked()
		}
		if cause != nil {
			h.setFailure(waitWithoutErrorHandler(cause), cause)
		}
		h.ended.Store(true)
		ended(ctx, t.db, "", msg, h, h.outcome(cause), cause)
	}()
	produced, err = t.attempts(ctx, next, msg, h)
	finished = true
	return produced, err
}

func (t *transactor) attempts(
	ctx context.Context, next message.HandlerFunc, msg *message.Message, h *handling,
) ([]*message.Message, error) {
	if err := t.misplaced(); err != nil {
		return nil, err
	}
	if t.cfg.JoinContext {
		ctx = core.AdoptTx(ctx)
	}
	_, err := t.db.Tx(ctx)
	joins := (h.inTx || t.cfg.JoinContext) && !errors.Is(err, outbox.ErrNoTx)
	if !joins {
		defer t.db.HandlerStarts(t.logger)()
		ctx = outbox.OutsideTx(ctx)
		t.logSubscriberTx(ctx, msg)
	}
	if !h.inTx {
		h.inTx = true
		defer func() { h.inTx = false }()
	} else {
		h = &handling{} // a savepoint needs its own state: the handling of the outer Tx counts
	}
	for n := 0; ; n++ {
		produced, err := t.attempt(ctx, next, msg, h, joins)
		if err == nil || joins || n >= t.cfg.MaxRetries || !repeatable(err) {
			return produced, err
		}
		t.logger.Debug("repeating the handler in a new transaction", fieldsOf(msg.Context(), msg).Add(watermill.LogFields{
			"attempt": n + 2, "sqlstate": text.SQLState(err),
		}))
		core.Pause(msg.Context(), core.Backoff(t.cfg.Backoff).Delay(n+1)) // shorter if the Router closes
		if deadline, limited := ctx.Deadline(); limited && !time.Now().Before(deadline) {
			return nil, err // the next BEGIN would fail and hide the conflict
		}
	}
}

func (t *transactor) attempt(
	ctx context.Context, next message.HandlerFunc, msg *message.Message, h *handling, joins bool,
) ([]*message.Message, error) {
	ctx, cancel := core.Lifetime(ctx, t.cfg.Timeout)
	defer cancel()
	h.attemptState = attemptState{}
	h.attempts++

	attempt := msg.Copy()
	attempt.Payload = slices.Clone(msg.Payload)
	opts := core.TxOptions{Isolation: t.cfg.Isolation}
	begun := false
	if t.cfg.OnBegin != nil {
		opts.OnBegin = func(ctx context.Context) error {
			begun, h.calling = true, onBegin
			attempt.SetContext(ctx)
			err := t.cfg.OnBegin(ctx, attempt)
			if err == nil && ctx.Err() != nil {
				err = fmt.Errorf("it exceeded TxConfig.Timeout or the deadline of its message: %w", ctx.Err())
			}
			if err == nil {
				h.begun, h.calling = true, noCallback
			}
			return err
		}
	}
	var produced []*message.Message
	succeeded := false
	err := core.InTx(ctx, t.db, opts, func(ctx context.Context) (err error) {
		begun = true
		core.OnUnfinished(ctx, func(err error) { h.unfinished = err })
		attempt.SetContext(ctx)
		if t.inspections.Load() > 0 {
			core.OnUse(ctx, t.inspect)
		}
		produced, err = next(attempt)
		if unsafe := t.misplaced(); unsafe != nil {
			return unsafe // even if the handler ignored the error
		}
		if err != nil {
			return err
		}
		if nacked(attempt) {
			return outbox.ErrNacked
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the handler exceeded TxConfig.Timeout or the deadline of its message: %w", ctx.Err())
		}
		succeeded = true
		return nil
	})
	switch {
	case err == nil:
		cancel()
		detachContexts(produced)
		return produced, nil
	case succeeded && errors.Is(err, outbox.ErrRolledBack):
		h.rolledBack = true
		return nil, nil
	case !begun && !joins:
		return nil, fmt.Errorf("%w: %w", core.ErrNotBegun, err)
	}
	return nil, err
}

// detachContexts replaces the context of messages that were made with the context of the attempt: the Router publishes
// them afterwards, and needs one that is alive and has no transaction.
func detachContexts(produced []*message.Message) {
	for _, out := range produced {
		if out != nil && out.Context().Err() != nil {
			out.SetContext(outbox.OutsideTx(context.WithoutCancel(out.Context())))
		}
	}
}

// logSubscriberTx logs once that the transaction of a watermill-sql subscriber is not joined.
func (t *transactor) logSubscriberTx(ctx context.Context, msg *message.Message) {
	_, theirs := wsql.TxFromContext(ctx)
	if theirs || message.SubscriberNameFromCtx(ctx) == "sql.Subscriber" { // v4 has its own context key and type
		t.logOwnTx.Do(func() {
			t.logger.Debug("subscriber has its own transaction: the handler does not join it", fieldsOf(ctx, msg))
		})
	}
}

func nacked(msg *message.Message) bool {
	select {
	case <-msg.Nacked():
		return true
	default:
		return false
	}
}

// repeatable reports whether an attempt failed only because of concurrent transactions: a serialization failure or a
// deadlock, both of which prove that nothing was committed.
func repeatable(err error) bool {
	later := new(core.RetryAfterError)
	if errors.Is(err, outbox.ErrCommitUnknown) || errors.Is(err, outbox.ErrPoison) ||
		errors.Is(err, outbox.ErrAlreadyProcessed) || errors.As(err, &later) {
		return false
	}
	state := text.SQLState(err)
	return state == "40001" || state == "40P01"
}
