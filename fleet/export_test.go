package fleet

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Pool returns the pool of a DSN, or nil.
func (f *Fleet) Pool(dsn string) *pgxpool.Pool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.pools[dsn]; p != nil {
		return p.pgx
	}
	return nil
}

// Apply applies a discovery's result.
func (f *Fleet) Apply(ctx context.Context, targets ...Target) { f.apply(ctx, targets) }

// Slots returns how many slots of the budget are taken, and how many callers wait for one.
func (f *Fleet) Slots() (taken, waiting int) {
	f.budget.mu.Lock()
	defer f.budget.mu.Unlock()
	return f.budget.most - f.budget.free, f.budget.queue.Len()
}
