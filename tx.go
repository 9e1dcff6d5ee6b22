package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/watermill-outbox/schema"
)

type scopeKey struct{}

// scope is a transaction, or a savepoint in one, as the context carries it.
type scope struct {
	tx     *txState
	parent *scope
	depth  int // of savepoints

	ended        bool // a savepoint that was released or undone
	rollbackOnly bool
	afterCommit  []func()
	pending      []capture // written together with COMMIT
}

// txState is what all scopes of one transaction share.
type txState struct {
	db     *DB // nil after WithTx
	q      schema.Querier
	native func(ctx context.Context) any
	ended  bool
	broken error             // a savepoint could not be undone, so nothing may be committed
	wrote  map[string]string // outbox tables, to the channels to notify

	handler, topic string // what it was begun in, if that was a handler of a Router
}

type capture struct {
	publisher *Publisher
	topic     string
	records   []record
}

// scopeFrom leaves alone a transaction that came along with a message from one handler to another, as in-process
// Pub/Subs can pass contexts on: it belongs to another goroutine.
func scopeFrom(ctx context.Context) *scope {
	s, _ := ctx.Value(scopeKey{}).(*scope)
	if s != nil && s.tx.handler != "" &&
		(s.tx.handler != message.HandlerNameFromCtx(ctx) || s.tx.topic != message.SubscribeTopicFromCtx(ctx)) {
		return nil
	}
	return s
}

// begunIn notes the handler whose context this is.
func (tx *txState) begunIn(ctx context.Context) {
	tx.handler, tx.topic = message.HandlerNameFromCtx(ctx), message.SubscribeTopicFromCtx(ctx)
}

func (s *scope) over() bool { return s.ended || s.tx.ended }

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

// WithTx returns a context that carries a transaction which the caller began and will commit: a pgx.Tx or
// a *sql.Tx. What is published with it is written at once and becomes visible with the caller's COMMIT; a
// forwarder notices at its next poll, or at once if the caller then calls its Wake. AfterCommit and
// SetRollbackOnly do not work in it, because nobody tells this module how it ended; inside a nested
// InTx SetRollbackOnly does, for the savepoint. It returns ErrBadTx for anything else, nil included.
func WithTx(ctx context.Context, tx any) (context.Context, error) {
	if v := reflect.ValueOf(tx); v.Kind() == reflect.Pointer && v.IsNil() {
		return ctx, ErrBadTx
	}
	s := &scope{tx: &txState{native: func(context.Context) any { return tx }}}
	s.tx.begunIn(ctx)
	switch tx := tx.(type) {
	case *sql.Tx:
		s.tx.q = &sqlTx{tx: tx}
	case pgx.Tx:
		s.tx.q = foreignPgxTx{tx}
	default:
		return ctx, ErrBadTx
	}
	return context.WithValue(ctx, scopeKey{}, s), nil
}

// foreignPgxTx runs statements in a pgx.Tx that the caller began.
type foreignPgxTx struct{ tx pgx.Tx }

func (f foreignPgxTx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := f.tx.Exec(ctx, query, args...)
	return tag.RowsAffected(), err
}

func (f foreignPgxTx) Query(ctx context.Context, query string, args ...any) (schema.Rows, error) {
	rows, err := f.tx.Query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return pgxRows{rows}, nil
}

// TxFromContext returns the transaction that the context carries: TxFromContext[pgx.Tx] with a DB of
// FromPgx, TxFromContext[*sql.Tx] with one of FromSQL, and TxFromContext[schema.Querier] with either. It
// returns false if there is none, if it has ended, or if it is of another kind. Like any transaction it serves one
// goroutine at a time. The pgx.Tx refuses Commit and Rollback with ErrTxManaged; a *sql.Tx cannot, so
// do not call them: InTx would return ErrTxEnded.
func TxFromContext[T any](ctx context.Context) (T, bool) {
	var none T
	s := scopeFrom(ctx)
	if s == nil || s.over() {
		return none, false
	}
	if _, ok := any(&none).(*schema.Querier); ok {
		q, ok := s.tx.q.(T)
		return q, ok
	}
	tx, ok := s.tx.native(ctx).(T)
	return tx, ok
}

// OutsideTx returns ctx without the transaction that it carries: what is done with it is not undone
// by a rollback, and does not become visible with the commit either.
func OutsideTx(ctx context.Context) context.Context {
	return context.WithValue(ctx, scopeKey{}, (*scope)(nil))
}

// TxQuerier returns the transaction that the context carries, for statements that must run in a
// transaction of db. It returns ErrNoTx if there is none or it has ended, ErrOtherDB if it was begun on
// another DB, and ErrNoDB. A transaction of WithTx is taken to be one of db.
func (db *DB) TxQuerier(ctx context.Context) (schema.Querier, error) {
	if err := db.Check(); err != nil {
		return nil, err
	}
	s := scopeFrom(ctx)
	switch {
	case s == nil || s.over():
		return nil, ErrNoTx
	case s.tx.db != nil && s.tx.db != db:
		return nil, ErrOtherDB
	}
	return s.tx.q, nil
}

// AfterCommit has fn called once the transaction in the context is committed, in the order of the
// calls. It is dropped if the transaction, or the savepoint around it, is rolled back or its outcome unknown. It
// returns ErrNoTx if there is no transaction, or only one of WithTx, or if it, or the nested InTx, has ended.
func AfterCommit(ctx context.Context, fn func()) error {
	s := scopeFrom(ctx)
	if s == nil || s.tx.db == nil || s.over() {
		return ErrNoTx
	}
	s.afterCommit = append(s.afterCommit, fn)
	return nil
}

// SetRollbackOnly makes InTx roll back although its function returns nil, and return ErrRolledBack;
// middleware.Tx then acks the message. It is for code whose errors are swallowed before they reach
// the transaction, such as CQRS handlers with AckCommandHandlingErrors. In a nested InTx it concerns the
// savepoint. It returns ErrNoTx if there is no transaction, or only one of WithTx outside a nested InTx, or if it, or the
// nested InTx, has ended.
func SetRollbackOnly(ctx context.Context) error {
	s := scopeFrom(ctx)
	if s == nil || s.over() || (s.tx.db == nil && s.parent == nil) {
		return ErrNoTx
	}
	s.rollbackOnly = true
	return nil
}

// refusal says why a scope whose function returned nil is rolled back all the same, or nil.
func (s *scope) refusal() error {
	switch {
	case s.tx.broken != nil:
		return s.tx.broken
	case s.rollbackOnly:
		return ErrRolledBack
	}
	return nil
}

func (s *scope) wrote(p *Publisher) {
	if s.tx.wrote == nil {
		s.tx.wrote = map[string]string{}
	}
	s.tx.wrote[p.table] = p.channel
}
