package drive

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
)

// sqlSession is a *sql.DB or a *sql.Conn.
type sqlSession interface {
	execQuerier
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// sqlPinned runs statements outside of transactions. One that needs pins gets a transaction of its own.
type sqlPinned struct {
	on   sqlSession
	mode []any
	pins *pins // nil = none
}

func (p sqlPinned) Exec(ctx context.Context, query string, args ...any) (n int64, err error) {
	tx, err := p.begin(ctx)
	if err != nil {
		return 0, err
	}
	if tx == nil {
		n, err = sqlExec(ctx, p.on, query, slices.Concat(p.mode, args))
		p.pins.doubt(err)
		return n, err
	}
	if n, err = sqlExec(ctx, tx, query, slices.Concat(p.mode, args)); err == nil {
		return n, tx.Commit()
	}
	p.pins.doubt(err)
	return 0, errors.Join(err, rolledBack(tx))
}

func (p sqlPinned) Query(ctx context.Context, query string, args ...any) (Rows, error) {
	tx, err := p.begin(ctx)
	if err != nil {
		return nil, err
	}
	if tx == nil {
		rows, err := sqlQuery(ctx, p.on, query, slices.Concat(p.mode, args))
		p.pins.doubt(err)
		if err != nil {
			return nil, err
		}
		return doubtingRows{rows, p.pins}, nil
	}
	rows, err := sqlQuery(ctx, tx, query, slices.Concat(p.mode, args))
	if err != nil {
		p.pins.doubt(err)
		return nil, errors.Join(err, rolledBack(tx))
	}
	return &sqlPinnedRows{Rows: doubtingRows{rows, p.pins}, tx: tx}, nil
}

// needs returns the pins that statements need.
func (p sqlPinned) needs(ctx context.Context) (*pinned, error) {
	if known := p.pins.loaded(); known != nil {
		return known, nil
	}
	plain := p
	plain.pins = nil
	return p.pins.ask(ctx, plain)
}

// begin begins a transaction if statements need pins.
func (p sqlPinned) begin(ctx context.Context) (*sql.Tx, error) {
	pins, err := p.needs(ctx)
	if err != nil || pins.ours == nil {
		return nil, err
	}
	tx, err := p.on.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return nil, err
	}
	return tx, pin(ctx, tx, pins.ours)
}

// pin sets in a transaction of ours what its statements rely on, or ends it.
func pin(ctx context.Context, tx *sql.Tx, pins []string) error {
	if len(pins) == 0 {
		return nil
	}
	if _, err := tx.ExecContext(ctx, strings.Join(pins, "; ")); err != nil {
		return errors.Join(err, rolledBack(tx))
	}
	return nil
}

func rolledBack(tx *sql.Tx) error {
	if err := tx.Rollback(); !errors.Is(err, sql.ErrTxDone) {
		return err
	}
	return nil
}

// doubtingRows are those of a statement whose error may come late.
type doubtingRows struct {
	Rows
	pins *pins
}

func (r doubtingRows) Err() error {
	err := r.Rows.Err()
	r.pins.doubt(err)
	return err
}

// sqlPinnedRows also end the transaction that they came in.
type sqlPinnedRows struct {
	Rows
	tx    *sql.Tx
	ended bool
}

func (r *sqlPinnedRows) Close() error {
	if r.ended {
		return nil
	}
	r.ended = true
	err := errors.Join(r.Rows.Err(), r.Rows.Close())
	if err != nil {
		return errors.Join(err, rolledBack(r.tx))
	}
	return r.tx.Commit()
}
