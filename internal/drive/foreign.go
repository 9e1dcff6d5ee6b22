package drive

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"
)

// JoinPgx returns a Tx for a transaction that the caller began and will commit.
func JoinPgx(tx pgx.Tx) Tx { return foreignPgxTx{tx} }

// JoinSQL returns a Tx for a database/sql transaction that the caller began and will commit.
func JoinSQL(tx *sql.Tx) Tx { return foreignSQLTx{&sqlTx{tx: tx}} }

// foreignPgxTx is a pgx.Tx that the caller began and will commit.
type foreignPgxTx struct{ tx pgx.Tx }

func (f foreignPgxTx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := f.tx.Exec(ctx, query, args...)
	return tag.RowsAffected(), explainBusy(err)
}

func (f foreignPgxTx) Query(ctx context.Context, query string, args ...any) (Rows, error) {
	rows, err := f.tx.Query(ctx, query, args...)
	if err != nil {
		return nil, explainBusy(err)
	}
	return pgxRows{rows}, nil
}

func (f foreignPgxTx) HandOut(context.Context) (any, error) { return f.tx, nil }
func (f foreignPgxTx) Mark(context.Context) error           { return nil }
func (f foreignPgxTx) Marked() bool                         { return false }
func (f foreignPgxTx) Later() bool                          { return false }

// foreignSQLTx is a *sql.Tx that the caller began and will commit.
type foreignSQLTx struct{ *sqlTx }

func (f foreignSQLTx) HandOut(context.Context) (any, error) { return f.tx, nil }
func (f foreignSQLTx) Mark(context.Context) error           { return nil }
