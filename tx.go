package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-go/watermill-outbox/schema"
)

// InTx runs fn in a transaction of db, which fn finds in its context, and commits it if fn returns nil.
// If fn returns an error or panics, the transaction is rolled back and the error or the panic passed on. In
// a context that carries a transaction already, of InTx or of WithTx, fn runs behind a savepoint of that
// one: its failure undoes only its own work. If that transaction, or the nested InTx, has ended, InTx returns ErrTxEnded;
// with OutsideTx(ctx) it begins a new one. A transaction that was begun in another handler of a Router, whose context came
// along with a message within the process, counts as none.
//
// Besides the errors of fn and of the database it returns ErrNoDB, ErrOtherDB if the context carries a
// transaction of another DB, ErrRolledBack, ErrTxEnded and ErrCommitUnknown. Serialization failures
// and deadlocks are not retried here; middleware.Tx does.
func InTx(ctx context.Context, db *DB, fn func(ctx context.Context) error) error {
	return InTxWith(ctx, db, TxOptions{}, fn)
}

// InTxWith is InTx with settings. In a nested call only OnBegin is used.
func InTxWith(ctx context.Context, db *DB, opts TxOptions, fn func(ctx context.Context) error) error {
	if err := db.Check(); err != nil {
		return err
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

	s := &scope{tx: &txState{db: db}}
	s.tx.begunIn(ctx)
	if err := s.observed(ctx, opts, fn); err != nil {
		return err
	}
	for table, channel := range s.tx.wrote {
		db.committed(table, channel)
	}
	for _, hook := range s.afterCommit {
		hook()
	}
	return nil
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
	s.tx.q, s.tx.native = native, func(ctx context.Context) any {
		if lazy, ok := native.(*pgxTx); ok {
			_ = lazy.start(ctx) // kept there: the first use of the transaction returns it
		}
		return native.native()
	}
	finished := false
	defer func() {
		s.tx.ended = true
		if !finished { // fn panicked, or called runtime.Goexit
			_ = native.rollback(ctx)
		}
	}()
	err = fn(context.WithValue(ctx, scopeKey{}, s))
	finished = true
	s.tx.ended = true
	if err == nil {
		err = s.refusal()
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
	if err := native.commit(ctx, pendingStatements(s.pending)); err != nil {
		return fmt.Errorf("commit: %w", schema.Explain(err))
	}
	return nil
}

// pendingStatements joins neighbours that go to the same table, so that what a handler returned is
// one statement even if it was captured in several calls.
func pendingStatements(pending []capture) []statement {
	var list []statement
	for len(pending) > 0 {
		insert := pending[0].publisher.insert
		var records []record
		for len(pending) > 0 && pending[0].publisher.insert == insert {
			records = append(records, pending[0].records...)
			pending = pending[1:]
		}
		list = append(list, chunks(insert, records)...)
	}
	return list
}

func inSavepoint(ctx context.Context, outer *scope, fn func(context.Context) error) (err error) {
	if outer.over() {
		return ErrTxEnded
	}
	tx := outer.tx
	s := &scope{tx: tx, parent: outer, depth: outer.depth + 1}
	name := fmt.Sprintf("outbox_%d", s.depth)
	if _, err := tx.q.Exec(ctx, "savepoint "+name); err != nil {
		return fmt.Errorf("savepoint: %w", err)
	}
	undo := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		// Released as well, or it would hide one of that name that was made around a transaction of WithTx.
		for _, verb := range []string{"rollback to", "release"} {
			if _, err := tx.q.Exec(ctx, verb+" savepoint "+name); err != nil {
				tx.broken = fmt.Errorf("%s savepoint: %w", verb, err)
				return tx.broken
			}
		}
		return nil
	}
	finished := false
	defer func() {
		s.ended = true
		if !finished {
			_ = undo()
		}
	}()
	err = fn(context.WithValue(ctx, scopeKey{}, s))
	finished = true
	s.ended = true
	if err == nil {
		err = s.refusal()
	}
	if err != nil {
		return errors.Join(err, undo())
	}
	if _, err := tx.q.Exec(ctx, "release savepoint "+name); err != nil {
		return errors.Join(fmt.Errorf("release savepoint: %w", err), undo())
	}
	outer.afterCommit = append(outer.afterCommit, s.afterCommit...)
	outer.pending = append(outer.pending, s.pending...)
	return nil
}
