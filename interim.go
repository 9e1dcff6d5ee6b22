package outbox

import (
	"context"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
)

// What follows is for packages of this module that do not yet convert handles and publishers to those of internal/core.

func (db *DB) Check() error { return (*core.DB)(db).Check() }
func (db *DB) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	return (*core.DB)(db).Exec(ctx, query, args...)
}
func (db *DB) Query(ctx context.Context, query string, args ...any) (drive.Rows, error) {
	return (*core.DB)(db).Query(ctx, query, args...)
}
func (db *DB) Transact(ctx context.Context, fn func(drive.Querier) error) error {
	return (*core.DB)(db).Transact(ctx, fn)
}
func (db *DB) Dedicated(ctx context.Context) (drive.Querier, func(), error) {
	return (*core.DB)(db).Dedicated(ctx)
}
func (db *DB) Reset()                                     { (*core.DB)(db).Reset() }
func (db *DB) OnCommit(_ string, fn func()) (stop func()) { return (*core.DB)(db).OnCommit(fn) }
func (db *DB) Listen(ctx context.Context, _ string, fn func()) error {
	return (*core.DB)(db).Listen(ctx, fn)
}
func (db *DB) TxQuerier(ctx context.Context) (drive.Querier, error) { return (*core.DB)(db).Tx(ctx) }

var ErrNoListen = drive.ErrNoListen

func (p *Publisher) DB() *DB                         { return (*DB)((*core.Publisher)(p).DB()) }
func (p *Publisher) Logger() watermill.LoggerAdapter { return (*core.Publisher)(p).Logger() }
