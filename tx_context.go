package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"

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
// returns ErrNoTx if there is none or it has ended, and ErrTxKind if it is of another kind. Like any transaction it
// serves one goroutine at a time. The pgx.Tx refuses Commit and Rollback with ErrTxManaged; a *sql.Tx cannot, so
// do not call them: InTx would return ErrTxEnded.
func TxFromContext[T any](ctx context.Context) (T, error) {
	var none T
	s := scopeFrom(ctx)
	if s == nil || s.over() {
		return none, ErrNoTx
	}
	var native any = s.tx.q
	if _, ok := any(&none).(*schema.Querier); !ok {
		native = s.tx.native(ctx)
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
