package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/schema"
)

// scope is a transaction, or a savepoint in one, as the context carries it. tx.mu guards what changes.
type scope struct {
	tx     *txState
	parent *scope

	ended        bool // a savepoint that was released or undone
	rollbackOnly bool
	afterCommit  []func()
	pending      []capture // written together with COMMIT
}

// txState is what all scopes of one transaction share.
type txState struct {
	db *DB // nil after WithTx
	q  heldTx

	// mu is held while a statement of ours runs and never while a function of the user's does: a goroutine that outlives
	// the function that InTx runs finds the transaction ended, and not its connection in other hands.
	mu        sync.Mutex
	innermost *scope
	ended     bool
	broken    error             // a savepoint could not be undone, so nothing may be committed
	wrote     map[string]string // outbox tables, to the channels to notify
}

// heldTx is a transaction that this package works in.
type heldTx interface {
	schema.Querier
	// handOut returns the pgx.Tx or *sql.Tx, for code that is not ours.
	handOut(ctx context.Context) (any, error)
	// mark makes sure that commit finds out if somebody ended the transaction by SQL. It is called before a savepoint is
	// made, or the mark could be undone with it.
	mark(ctx context.Context) error
	marked() bool
	// later says whether what is captured may wait for COMMIT.
	later() bool
}

type capture struct {
	publisher *Publisher
	topic     string
	records   []record
}

func scopeFrom(ctx context.Context) *scope {
	s, _ := core.TxFrom(ctx).(*scope)
	return s
}

// use runs fn unless the scope has ended, and keeps it from ending meanwhile.
func (s *scope) use(fn func() error) error {
	s.tx.mu.Lock()
	defer s.tx.mu.Unlock()
	if s.ended || s.tx.ended {
		return errOver
	}
	return fn()
}

// advised is an error with a text of its own that is another one to errors.Is.
type advised struct {
	text string
	error
}

func (e advised) Error() string { return e.text }
func (e advised) Unwrap() error { return e.error }

// errOver is for contexts that are used after their transaction, or nested InTx.
var errOver error = advised{"outbox: the transaction of this context has ended, with the handler or the function " +
	"of InTx that the context was for: use the context of the code that runs now, or outbox.OutsideTx(ctx)",
	errors.Join(ErrNoTx, ErrTxEnded)}

// WithTx returns a context that carries a transaction which the caller began and will commit: a pgx.Tx or
// a *sql.Tx. What is published with it is written at once and becomes visible with the caller's COMMIT; a
// forwarder notices at its next poll, or at once if the caller then calls its Wake. AfterCommit and
// SetRollbackOnly do not work in it, because nobody tells this module how it ended; inside a nested
// InTx SetRollbackOnly does, for the savepoint. It returns ErrBadTx for anything else, nil included.
func WithTx(ctx context.Context, tx any) (context.Context, error) {
	v := reflect.ValueOf(tx)
	if v.Kind() == reflect.Pointer && v.IsNil() {
		return ctx, ErrBadTx
	}
	switch tx.(type) {
	case *sql.Tx, *pgxpool.Tx: // a pool makes them
		if v.Elem().IsZero() {
			return ctx, ErrBadTx
		}
	}
	t := &txState{}
	switch tx := tx.(type) {
	case *sql.Tx:
		t.q = foreignSQLTx{&sqlTx{tx: tx}}
	case pgx.Tx:
		t.q = foreignPgxTx{tx}
	default:
		return ctx, ErrBadTx
	}
	return core.WithTx(ctx, t.begin()), nil
}

func (t *txState) begin() *scope {
	t.innermost = &scope{tx: t}
	return t.innermost
}

// TxFromContext returns the transaction that the context carries: TxFromContext[pgx.Tx] with a DB of
// FromPgx, TxFromContext[*sql.Tx] with one of FromSQL, and TxFromContext[schema.Querier] with either. It
// returns ErrNoTx if there is none or it has ended, ErrTxKind if it is of another kind, and the error of BEGIN if that
// failed. Like any transaction it serves one goroutine at a time. The pgx.Tx refuses Commit and Rollback with
// ErrTxManaged; a *sql.Tx cannot, so do not call them: InTx would return ErrTxEnded.
func TxFromContext[T any](ctx context.Context) (T, error) {
	var none T
	s := scopeFrom(ctx)
	if s == nil {
		return none, ErrNoTx
	}
	var native any
	err := s.use(func() (err error) {
		native, err = s.tx.q.handOut(ctx)
		return err
	})
	if err != nil {
		return none, err
	}
	if _, ok := any(&none).(*schema.Querier); ok {
		native = s.tx.q
	}
	tx, ok := native.(T)
	if !ok {
		kind := "pgx.Tx"
		if _, ok := native.(*sql.Tx); ok {
			kind = "*sql.Tx"
		}
		return none, fmt.Errorf("%w: it is a %s, not a %s", ErrTxKind, kind, reflect.TypeFor[T]())
	}
	return tx, nil
}

// OutsideTx returns ctx without the transaction that it carries: what is done with it is not undone
// by a rollback, and does not become visible with the commit either.
func OutsideTx(ctx context.Context) context.Context {
	return core.WithTx(ctx, nil)
}

// TxQuerier returns the transaction that the context carries, for statements that must run in a
// transaction of db. It returns ErrNoTx if there is none or it has ended, ErrOtherDB if it was begun on
// another DB, and ErrNoDB. A transaction of WithTx is taken to be one of db.
func (db *DB) TxQuerier(ctx context.Context) (schema.Querier, error) {
	if err := db.Check(); err != nil {
		return nil, err
	}
	s := scopeFrom(ctx)
	if s == nil {
		return nil, ErrNoTx
	}
	return s.tx.q, s.use(func() error {
		if s.tx.db != nil && s.tx.db != db {
			return ErrOtherDB
		}
		return nil
	})
}

// AfterCommit has fn called once the transaction in the context is committed, in the order of the
// calls. It is dropped if the transaction, or the nested InTx around it, is rolled back or its outcome unknown. A panic
// in it goes on when all of them were called. AfterCommit returns ErrNoTx if there is no transaction, or only one of
// WithTx, or if it, or the nested InTx, has ended.
func AfterCommit(ctx context.Context, fn func()) error {
	if fn == nil {
		return errors.New("outbox: AfterCommit: the function is nil")
	}
	s := scopeFrom(ctx)
	if s == nil || s.tx.db == nil {
		return ErrNoTx
	}
	return s.use(func() error {
		s.afterCommit = append(s.afterCommit, fn)
		return nil
	})
}

// SetRollbackOnly makes InTx roll back although its function returns nil, and return ErrRolledBack;
// middleware.Tx then acks the message. It is for code whose errors are swallowed before they reach
// the transaction, such as CQRS handlers with AckCommandHandlingErrors. In a nested InTx it concerns the
// savepoint. It returns ErrNoTx if there is no transaction, or only one of WithTx outside a nested InTx, or if it, or the
// nested InTx, has ended.
func SetRollbackOnly(ctx context.Context) error {
	s := scopeFrom(ctx)
	if s == nil || (s.tx.db == nil && s.parent == nil) {
		return ErrNoTx
	}
	return s.use(func() error {
		s.rollbackOnly = true
		return nil
	})
}

func (s *scope) wrote(p *Publisher) {
	if s.tx.wrote == nil {
		s.tx.wrote = map[string]string{}
	}
	if p.channel != "" || s.tx.wrote[p.table] == "" { // one publisher that notifies is enough
		s.tx.wrote[p.table] = p.channel
	}
}
