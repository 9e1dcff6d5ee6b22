//go:build unix

package integration_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// faultTracer sees the statements of a process, and kills it.
type faultTracer struct {
	fault  parkFault
	stores atomic.Int64
	done   atomic.Bool
}

type tracedKey struct{}

func (f *faultTracer) strike() {
	if f.done.Swap(true) {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal takes a moment
}

func isStore(sql string) bool {
	return strings.Contains(strings.ToLower(sql), `insert into "outbox_parked"`)
}
func isLook(sql string) bool {
	return strings.Contains(sql, "GROUP BY o.key") || strings.Contains(sql, "GROUP BY k.key")
}

func (f *faultTracer) started(ctx context.Context, sqls ...string) context.Context {
	for _, sql := range sqls {
		switch {
		case isStore(sql):
			if f.stores.Add(1) >= f.fault.Nth && f.fault.At == "before store" {
				f.strike()
			}
			return context.WithValue(ctx, tracedKey{}, "store")
		case isLook(sql):
			if f.stores.Load() >= f.fault.Nth && f.fault.At == "after ack" {
				f.strike()
			}
			return context.WithValue(ctx, tracedKey{}, "look")
		case strings.EqualFold(sql, "commit"):
			return context.WithValue(ctx, tracedKey{}, "commit")
		}
	}
	return ctx
}

func (f *faultTracer) ended(ctx context.Context, rows int64) {
	what, _ := ctx.Value(tracedKey{}).(string)
	switch {
	case what == "store" && f.stores.Load() >= f.fault.Nth && f.fault.At == "after store":
		f.strike()
	case what == "look" && rows == 0 && f.stores.Load() >= f.fault.Nth && f.fault.At == "before leave":
		f.strike()
	}
}

func (f *faultTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	return f.started(ctx, q.SQL)
}

func (f *faultTracer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryEndData) {
	f.ended(ctx, q.CommandTag.RowsAffected())
}

func (f *faultTracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, b pgx.TraceBatchStartData) context.Context {
	var sqls []string
	for _, q := range b.Batch.QueuedQueries {
		sqls = append(sqls, q.SQL)
	}
	return f.started(ctx, sqls...)
}

func (f *faultTracer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (f *faultTracer) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchEndData) {
	f.ended(ctx, -1)
}

// parks is a world with failing keys: key-0 to key-2, until mend.
func (w *inboundWorld) parks() (c inboundConfig, mend func()) {
	w.h.exec(w.t, `create table mended (at timestamptz)`)
	c = w.config()
	c.ParkAfter = patience / 40
	c.MaxAhead = 100
	return c, func() { w.h.exec(w.t, `insert into mended values (now())`) }
}

// failing is how many messages were sent of the keys that fail.
func (w *inboundWorld) failing() int { return w.sent["key-0"] + w.sent["key-1"] + w.sent["key-2"] }

func failsUntilMended(h handle) func(*message.Message, string) error {
	return failUntilMended(h, func(key string) bool { return key == "key-0" || key == "key-1" || key == "key-2" })
}

func failUntilMended(h handle, fails func(key string) bool) func(*message.Message, string) error {
	return func(msg *message.Message, key string) error {
		if !fails(key) {
			return nil
		}
		var mended bool
		if err := h.pool.QueryRow(msg.Context(), `select exists (select from mended)`).Scan(&mended); err != nil {
			return err
		}
		if !mended {
			return errors.New("fails")
		}
		return nil
	}
}

// parked is how many rows are in the park.
func (w *inboundWorld) parked() int {
	w.t.Helper()
	if w.h.count(w.t, `select count(*) from pg_class where relname = 'outbox_parked'`) == 0 {
		return 0
	}
	return w.h.count(w.t, `select count(*) from outbox_parked where published_at is null`)
}

// awaitParked waits until all that does not fail is handled, and keys that fail are parked.
func (w *inboundWorld) awaitParked() {
	w.t.Helper()
	w.await(w.settled - w.failing())
	eventually(w.t, func() bool { return w.parked() > 0 }, "keys are parked")
}

// stores is how many rows were ever stored, or more.
func (w *inboundWorld) stores() int {
	return w.h.count(w.t, `select coalesce(last_value, 0) from outbox_parked_id_seq where is_called `+
		`union all select 0 limit 1`)
}

// settles waits until all is handled and the park is empty, and verifies.
func (w *inboundWorld) settles() {
	w.t.Helper()
	w.await(w.settled)
	eventually(w.t, func() bool { return w.parked() == 0 }, "the park is empty")
	w.verify()
	require.Positive(w.t, w.stores(), "nothing was ever parked: the test proves nothing")
}
