package outbox

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/watermill-outbox/schema"
)

// foreignPgxTx is a pgx.Tx that the caller began and will commit.
type foreignPgxTx struct{ tx pgx.Tx }

func (f foreignPgxTx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := f.tx.Exec(ctx, query, args...)
	return tag.RowsAffected(), explainBusy(err)
}

func (f foreignPgxTx) Query(ctx context.Context, query string, args ...any) (schema.Rows, error) {
	rows, err := f.tx.Query(ctx, query, args...)
	if err != nil {
		return nil, explainBusy(err)
	}
	return pgxRows{rows}, nil
}

func (f foreignPgxTx) handOut(context.Context) (any, error) { return f.tx, nil }
func (f foreignPgxTx) mark(context.Context) error           { return nil }
func (f foreignPgxTx) marked() bool                         { return false }
func (f foreignPgxTx) later() bool                          { return false }

// foreignSQLTx is a *sql.Tx that the caller began and will commit.
type foreignSQLTx struct{ *sqlTx }

func (f foreignSQLTx) handOut(context.Context) (any, error) { return f.tx, nil }
func (f foreignSQLTx) mark(context.Context) error           { return nil }
