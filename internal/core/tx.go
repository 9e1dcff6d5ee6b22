package core

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// Package outbox exports and documents these.
var (
	ErrNoTx = errors.New("outbox: no transaction in the context: put middleware.Tx around the handler " +
		"or call inside outbox.InTx, " +
		"and pass that context on (PublishContext, or SetContext of the message); or set PublisherConfig.WithoutTx")
	ErrOtherDB = errors.New("outbox: the transaction in the context belongs to another database: its handle was made " +
		"from another pool")
	ErrTxBusy = errors.New("outbox: a nested InTx is running in this transaction: use the context passed to its " +
		"function, and run nested calls one after another, or outside the transaction (OutsideTx)")
	ErrRolledBack = errors.New("outbox: rolled back on request")
	ErrNacked     = errors.New("outbox: the message was nacked")
)

// errOver is for contexts that are used after their transaction or nested InTx has ended.
var errOver = text.Advise(errors.Join(ErrNoTx, drive.ErrTxEnded),
	"outbox: the transaction of this context has ended, because the handler or the function of InTx has returned: "+
		"use the context of the code that runs now, or outbox.OutsideTx(ctx)")

// TxOptions is outbox.TxOptions.
type TxOptions struct {
	Isolation sql.IsolationLevel
	Timeout   time.Duration
	OnBegin   func(ctx context.Context) error
}

// scope is a transaction, or a savepoint in one, as the context carries it. tx.mu guards its mutable fields.
type scope struct {
	tx     *tx
	parent *scope

	ended        bool
	rollbackOnly bool
	afterCommit  []func(ctx context.Context)
	unfinished   func(err error)
	onUse        func() error
	failure      error   // called if the function never returned
	waiting      []write // messages that wait for COMMIT
}

// tx is the state that all scopes of one transaction share.
type tx struct {
	db   *DB
	q    drive.Tx
	ours bool // false if other code commits

	mu        sync.Mutex
	innermost *scope
	broken    error // a savepoint could not be undone, so the transaction must not be committed
	wrote     map[*DB]wrote
	uses      int  // how often code took the transaction from the context
	idle      bool // its only user so far wrote nothing
}

func (t *tx) begin() *scope {
	t.innermost = &scope{tx: t}
	return t.innermost
}

func scopeFrom(ctx context.Context) *scope {
	s, _ := txFrom(ctx).(*scope)
	return s
}

// use runs fn unless the scope, or an outer one, has ended. Scopes cannot end while fn runs.
func (s *scope) use(fn func() error) error {
	s.tx.mu.Lock()
	defer s.tx.mu.Unlock()
	for around := s; around != nil; around = around.parent {
		if around.ended {
			return errOver
		}
	}
	s.tx.uses++
	return fn()
}

// MarkReadOnly makes the transaction of ctx end with ROLLBACK and still succeed, provided that only the caller used it:
// COMMIT of a transaction that only locked a row would wait for the disk.
func MarkReadOnly(ctx context.Context) {
	s := scopeFrom(ctx)
	if s == nil || !s.tx.ours || s.parent != nil {
		return
	}
	s.tx.mu.Lock()
	defer s.tx.mu.Unlock()
	s.tx.idle = s.tx.uses == 1
}

// end ends a scope after its function returned, so that nothing can use it any more. If the scope must be rolled back
// although its function returned nil, end returns the reason.
func (s *scope) end() error {
	s.tx.mu.Lock()
	defer s.tx.mu.Unlock()
	s.ended = true
	switch {
	case s.tx.broken != nil:
		return s.tx.broken
	case s.tx.innermost != s:
		return fmt.Errorf("%w: the function returned while a nested InTx was still running", ErrTxBusy)
	case s.rollbackOnly:
		return ErrRolledBack
	}
	return nil
}

// InTx is outbox.InTxWith.
func InTx(ctx context.Context, db *DB, opts TxOptions, fn func(ctx context.Context) error) error {
	if err := db.Check(); err != nil {
		return err
	}
	if fn == nil {
		return errors.New("outbox: InTx: the function is nil")
	}
	if opts.Timeout < -1 {
		return fmt.Errorf("TxOptions.Timeout is %s: use 0 or -1 for none", opts.Timeout)
	}
	if opts.Timeout > 0 {
		limited, cancel := context.WithTimeout(ctx, opts.Timeout)
		defer cancel()
		ctx = limited
	}
	if opts.OnBegin != nil {
		inner := fn
		fn = func(ctx context.Context) error {
			if err := opts.OnBegin(ctx); err != nil {
				return fmt.Errorf("OnBegin: %w", err)
			}
			return inner(ctx)
		}
	}
	if outer := scopeFrom(ctx); outer != nil {
		if !outer.tx.db.shares(db) {
			return ErrOtherDB
		}
		return inSavepoint(ctx, outer, fn)
	}
	s := (&tx{db: db, ours: true}).begin()
	if err := s.observed(ctx, opts, fn); err != nil {
		return err
	}
	for db, what := range s.tx.wrote {
		db.wake(what.tables, what.notified)
	}
	outside := OutsideTx(ctx)
	for _, hook := range s.afterCommit {
		db.guard("AfterCommit", func() { hook(outside) })
	}
	return nil
}

// InTxHere runs InTx for user code, which may have got the context from another goroutine.
func InTxHere(ctx context.Context, db *DB, opts TxOptions, fn func(ctx context.Context) error) error {
	if outer := scopeFrom(ctx); outer != nil {
		if Elsewhere(ctx) {
			return outer.use(func() error { return errElsewhere })
		}
		// Check it here, because the nested InTx would hide the rest of the stack.
		if err := outer.use(outer.watched); err != nil {
			return err
		}
	}
	return InTx(ctx, db, opts, fn)
}

// Elsewhere reports whether the transaction of ctx belongs to an InTx in another goroutine, which may have published,
// within the process, the message that is handled here.
func Elsewhere(ctx context.Context) bool {
	s := scopeFrom(ctx)
	return s != nil && s.tx.ours && !here()
}

// Cause: the function ended its goroutine.
// Cure: return an error instead.
var errUnfinished = errors.New("outbox: the function that InTx runs panicked or called runtime.Goexit")

// OnUnfinished registers fn to be called if the function of the transaction, or savepoint, in ctx never returns because
// it panics or calls runtime.Goexit. The error wraps drive.ErrTxEnded if the function had ended the transaction.
func OnUnfinished(ctx context.Context, fn func(err error)) {
	if s := scopeFrom(ctx); s != nil {
		s.tx.mu.Lock()
		defer s.tx.mu.Unlock()
		s.unfinished = fn
	}
}

// OnUse registers fn to be called whenever user code takes the transaction, or savepoint, in ctx from that context, or
// begins a savepoint in it. User code gets fn's error. fn must not use the transaction.
func OnUse(ctx context.Context, fn func() error) {
	if s := scopeFrom(ctx); s != nil {
		s.tx.mu.Lock()
		defer s.tx.mu.Unlock()
		s.onUse = fn
	}
}

// watched is called under mu.
func (s *scope) watched() error {
	if s.onUse == nil {
		return nil
	}
	return s.onUse()
}

// abandon handles a function that never returned: no caller gets the error.
func (s *scope) abandon(err error) {
	if errors.Is(err, drive.ErrTxEnded) {
		// Cause: the function ended the transaction, then panicked or called Goexit.
		// Cure: leave COMMIT to InTx.
		s.tx.db.logger.Error("function of InTx ended its transaction and then did not return", err,
			watermill.LogFields{"db": s.tx.db.name})
	}
	if s.unfinished != nil {
		s.unfinished(err)
	}
	s.failure = err
}

// observed runs the transaction and reports its outcome to the observers, even if fn never returned.
func (s *scope) observed(ctx context.Context, opts TxOptions, fn func(context.Context) error) (err error) {
	begun := time.Now()
	ctx = s.tx.db.txStart(ctx)
	err = errUnfinished
	defer func() {
		if s.failure != nil {
			err = s.failure
		}
		if text.SQLState(err) == drive.ReadOnlyServer {
			s.tx.db.Reset()
		}
		s.tx.db.txEnd(ctx, time.Since(begun), err)
		for _, w := range s.waiting {
			w.told(err)
		}
	}()
	return s.run(ctx, opts, fn)
}

func (s *scope) run(ctx context.Context, opts TxOptions, fn func(context.Context) error) error {
	own, err := s.tx.db.pool.Begin(ctx, drive.TxOptions{Isolation: opts.Isolation})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	s.tx.q = own
	finished := false
	defer func() {
		if !finished { // fn panicked, or called runtime.Goexit
			_ = s.end()
			s.abandon(rollback(ctx, own, errUnfinished))
		}
	}()
	err = text.SafeError(fn(bindTx(ctx, s)))
	finished = true
	if endErr := s.end(); err == nil {
		err = endErr
	}
	if err != nil {
		return rollback(ctx, own, err)
	}
	if s.tx.idle && s.tx.uses == 1 { // no function holds the transaction any more, so no lock is needed
		_ = own.Rollback(ctx) // if this fails, the server rolls back
		return nil
	}
	for _, w := range s.waiting {
		s.tx.wroteTo(w.db, OutboxNotification)
	}
	if err := own.Commit(ctx, s.tx.statements(s.waiting), s.tx.notifications(own)); err != nil {
		if len(s.waiting) > 0 {
			err = text.Stored(err)
		}
		return fmt.Errorf("commit: %w", text.Explain(err))
	}
	return nil
}

// rollback returns err, joined with any error of ROLLBACK.
func rollback(ctx context.Context, own drive.OwnTx, err error) error {
	if !errors.Is(err, drive.ErrTxEnded) && own.Ended(ctx) { // its writes may be committed
		err = errors.Join(err, drive.ErrTxEnded)
	}
	if rollbackErr := own.Rollback(ctx); rollbackErr != nil {
		err = errors.Join(err, rollbackErr)
	}
	return err
}

// Transact runs fn in a READ COMMITTED transaction that no context carries, and commits it if fn returns nil.
func (db *DB) Transact(ctx context.Context, fn func(drive.Querier) error) error {
	if err := db.Check(); err != nil {
		return err
	}
	own, err := db.pool.Begin(ctx, drive.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer own.Rollback(context.WithoutCancel(ctx)) // no effect after a commit
	if err := fn(own); err != nil {
		return err
	}
	return own.Commit(ctx, nil, nil)
}
