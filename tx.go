package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/schema"
)

// InTx runs fn in a transaction of db, which fn finds in its context, and commits it if fn returns nil.
// If fn returns an error or panics, the transaction is rolled back and the error or the panic passed on. In
// a context that carries a transaction already, of InTx or of WithTx, fn runs behind a savepoint of that
// one: its failure undoes only its own work. There can be one such nested call at a time, with the context of the
// innermost; any other gets ErrTxBusy. If that transaction, or the nested InTx, has ended, InTx returns ErrTxEnded;
// with OutsideTx(ctx) it begins a new one. A transaction that came along with a message which a Router
// delivered, as in-process Pub/Subs can pass contexts on, counts as none: it belongs to whoever published.
//
// Besides the errors of fn and of the database it returns ErrNoDB, ErrOtherDB if the context carries a
// transaction of another DB, ErrRolledBack, ErrTxBusy, ErrTxEnded and ErrCommitUnknown. Serialization failures
// and deadlocks are not retried here; middleware.Tx does.
func InTx(ctx context.Context, db *DB, fn func(ctx context.Context) error) error {
	return InTxWith(ctx, db, TxOptions{}, fn)
}

// InTxWith is InTx with settings. In a nested call only OnBegin is used.
func InTxWith(ctx context.Context, db *DB, opts TxOptions, fn func(ctx context.Context) error) error {
	if err := db.Check(); err != nil {
		return err
	}
	if fn == nil {
		return errors.New("outbox: InTx: the function is nil")
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
		if outer.tx.db != nil && outer.tx.db != db {
			return ErrOtherDB
		}
		return inSavepoint(ctx, outer, fn)
	}

	s := (&txState{db: db}).begin()
	if err := s.observed(ctx, opts, fn); err != nil {
		return err
	}
	for table, channel := range s.tx.wrote {
		db.committed(table, channel)
	}
	callAll(s.afterCommit)
	return nil
}

// callAll calls the rest as well if one of them panics.
func callAll(hooks []func()) {
	for i, hook := range hooks {
		done := false
		func() {
			defer func() {
				if !done {
					callAll(hooks[i+1:])
				}
			}()
			hook()
			done = true
		}()
	}
}

var errUnfinished = errors.New("outbox: the function that InTx runs panicked or called runtime.Goexit")

// observed runs the transaction and tells the observers how it ended, also if fn never returned.
func (s *scope) observed(ctx context.Context, opts TxOptions, fn func(context.Context) error) (err error) {
	begun := time.Now()
	err = errUnfinished
	defer func() {
		if !opts.ReadOnly && schema.SQLState(err) == readOnlyServer {
			s.tx.db.Reset()
		}
		if opts.Observer != nil {
			opts.Observer.TxEnded(ctx, TxEnd{DB: s.tx.db.name, Duration: time.Since(begun), Err: err})
		}
		for _, c := range s.pending {
			c.publisher.observe(ctx, c.topic, c.records, 0, err)
		}
	}()
	return s.run(ctx, opts, fn)
}

func (s *scope) run(ctx context.Context, opts TxOptions, fn func(context.Context) error) error {
	native, err := s.tx.db.backend.begin(ctx, opts)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	s.tx.q = native
	finished := false
	defer func() {
		if !finished { // fn panicked, or called runtime.Goexit
			_ = s.end()
			_ = native.rollback(ctx)
		}
	}()
	err = fn(core.WithTx(ctx, s))
	finished = true
	if endErr := s.end(); err == nil {
		err = endErr
	}
	if err != nil {
		if rollbackErr := native.rollback(ctx); rollbackErr != nil {
			err = errors.Join(err, rollbackErr)
		}
		return err
	}
	for _, c := range s.pending {
		s.wrote(c.publisher)
	}
	if err := native.commit(ctx, pendingStatements(s.tx, s.pending)); err != nil {
		return fmt.Errorf("commit: %w", schema.Explain(err))
	}
	return nil
}

// end ends a scope whose function is done: nobody can use it any more. It says why the scope is to be undone although its
// function returned nil, or returns nil.
func (s *scope) end() error {
	s.tx.mu.Lock()
	defer s.tx.mu.Unlock()
	s.ended = true
	if s.parent == nil {
		s.tx.ended = true
	}
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

// pendingStatements joins neighbours that go to the same table, so that what a handler returned is
// one statement even if it was captured in several calls.
func pendingStatements(tx *txState, pending []capture) []statement {
	var list []statement
	for len(pending) > 0 {
		insert := pending[0].publisher.insertInto(tx)
		var records []record
		for len(pending) > 0 && pending[0].publisher.insertInto(tx) == insert {
			records = append(records, pending[0].records...)
			pending = pending[1:]
		}
		list = append(list, chunks(insert, records)...)
	}
	return list
}

// savepoints counts those of this process. Each has a name of its own, because a function that joined the native
// transaction with WithTx knows nothing of those around it.
var savepoints atomic.Int64

func nextSavepoint() string { return fmt.Sprintf("outbox_%d", savepoints.Add(1)) }

func inSavepoint(ctx context.Context, outer *scope, fn func(context.Context) error) error {
	s, name := &scope{tx: outer.tx, parent: outer}, nextSavepoint()
	err := outer.use(func() error {
		if s.tx.innermost != outer {
			return ErrTxBusy
		}
		if err := s.tx.q.mark(ctx); err != nil {
			return err
		}
		if _, err := s.tx.q.Exec(ctx, "savepoint "+name); err != nil {
			return fmt.Errorf("savepoint: %w", err)
		}
		s.tx.innermost = s
		return nil
	})
	if err != nil {
		return err
	}
	finished := false
	defer func() {
		if !finished {
			_ = s.end()
			_ = outer.use(func() error { return s.undo(ctx, name) })
		}
	}()
	err = fn(core.WithTx(ctx, s))
	finished = true
	if endErr := s.end(); err == nil {
		err = endErr
	}
	if overErr := outer.use(func() error {
		if err == nil {
			err = s.release(ctx, name)
		}
		if err != nil {
			err = errors.Join(err, s.undo(ctx, name))
		}
		return nil
	}); overErr != nil {
		return errors.Join(err, overErr)
	}
	return err
}

// release keeps what was done behind the savepoint.
func (s *scope) release(ctx context.Context, name string) error {
	if _, err := s.tx.q.Exec(ctx, "release savepoint "+name); err != nil {
		return fmt.Errorf("release savepoint: %w", err)
	}
	s.parent.afterCommit = append(s.parent.afterCommit, s.afterCommit...)
	s.parent.pending = append(s.parent.pending, s.pending...)
	s.tx.innermost = s.parent
	return nil
}

// undo rolls back to the savepoint, and releases it as well, or it would be kept until the end of the transaction.
func (s *scope) undo(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	for _, verb := range []string{"rollback to", "release"} {
		if _, err := s.tx.q.Exec(ctx, verb+" savepoint "+name); err != nil {
			s.tx.broken = fmt.Errorf("%s savepoint: %w", verb, err)
			return s.tx.broken
		}
	}
	s.tx.innermost = s.parent
	return nil
}
