package core

import (
	"context"
	"errors"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// NilTx is the ErrNoTx for a transaction that is nil or empty.
var NilTx = text.Advise(ErrNoTx, "the transaction is nil")

type txKey struct{}

// boundTx is a transaction in a context.
type boundTx struct {
	tx   any // a *scope
	tree Tree
}

// bindTx returns a context in which the call tree of ctx finds tx; nil hides the current one.
func bindTx(ctx context.Context, tx any) context.Context {
	ctx, tree := TreeOf(ctx)
	return context.WithValue(ctx, txKey{}, boundTx{tx, tree})
}

// txFrom returns the transaction that the call tree of ctx put into it, or nil.
func txFrom(ctx context.Context) any {
	b, _ := ctx.Value(txKey{}).(boundTx)
	if b.tx == nil || !b.tree.Has(ctx) {
		return nil
	}
	return b.tx
}

// AdoptTx returns a context in which the call tree of ctx finds the transaction of ctx, even one of another call tree.
func AdoptTx(ctx context.Context) context.Context {
	b, _ := ctx.Value(txKey{}).(boundTx)
	if b.tx == nil {
		return ctx
	}
	return bindTx(ctx, b.tx)
}

// OutsideTx is outbox.OutsideTx.
func OutsideTx(ctx context.Context) context.Context { return bindTx(ctx, nil) }

// WithTx returns a context that carries a transaction committed by other code.
func WithTx(ctx context.Context, db *DB, q drive.Tx) context.Context {
	return bindTx(ctx, (&tx{db: db, q: q}).begin())
}

// WithTxOf returns a context with the values of ctx, and with the transaction and lifetime of another context.
func WithTxOf(ctx, of context.Context) context.Context { return bindTx(valued{of, ctx}, scopeFrom(of)) }

// valued has the values of another context.
type valued struct {
	context.Context
	values context.Context
}

func (v valued) Value(key any) any { return v.values.Value(key) }

// Lifetime returns a context with the values and the deadline of ctx, or an earlier deadline if timeout is above 0, but
// without its cancellation: work that has begun must be able to commit after its caller has gone.
func Lifetime(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	deadline, limited := ctx.Deadline()
	if own := time.Now().Add(timeout); timeout > 0 && (!limited || own.Before(deadline)) {
		deadline, limited = own, true
	}
	ctx = context.WithoutCancel(ctx)
	if limited {
		return context.WithDeadline(ctx, deadline)
	}
	return context.WithCancel(ctx)
}

// Tx returns the transaction that the context carries, for statements that must run in a transaction of db. It returns
// ErrNoTx if the context has no transaction or it has ended, ErrOtherDB if it was begun on another handle, and ErrNoDB.
func (db *DB) Tx(ctx context.Context) (drive.Querier, error) {
	if err := db.Check(); err != nil {
		return nil, err
	}
	s := scopeFrom(ctx)
	if s == nil {
		return nil, ErrNoTx
	}
	if !s.tx.db.shares(db) {
		return nil, ErrOtherDB
	}
	return s.tx.q, s.use(func() error { return nil })
}

// Native returns the pgx.Tx or *sql.Tx of the context.
func Native(ctx context.Context) (native any, err error) {
	s := scopeFrom(ctx)
	if s == nil {
		return nil, ErrNoTx
	}
	err = s.use(func() (err error) {
		if err := s.watched(); err != nil {
			return err
		}
		native, err = s.tx.q.HandOut(ctx)
		return err
	})
	return native, err
}

// AfterCommit is outbox.AfterCommit.
func AfterCommit(ctx context.Context, fn func(ctx context.Context)) error {
	if fn == nil {
		return errors.New("outbox: AfterCommit: the function is nil")
	}
	s := scopeFrom(ctx)
	if s == nil || !s.tx.ours {
		return ErrNoTx
	}
	return s.use(func() error {
		s.afterCommit = append(s.afterCommit, fn)
		return nil
	})
}

// SetRollbackOnly is outbox.SetRollbackOnly.
func SetRollbackOnly(ctx context.Context) error {
	s := scopeFrom(ctx)
	if s == nil || !s.tx.ours && s.parent == nil {
		return ErrNoTx
	}
	return s.use(func() error {
		s.rollbackOnly = true
		return nil
	})
}
