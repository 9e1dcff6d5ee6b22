package integration_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// fetchSaboteur is a tracer on a forwarder's pool that makes some reads of the outbox time out or break, or
// takes the tracked transactions from all of them.
type fetchSaboteur struct {
	percent  int  // of the reads that fail
	forgetTx bool // what is left is a plain id > low
	reads    atomic.Int64
	failed   atomic.Int64
	forgot   atomic.Int64
}

type cancelKey struct{}

func isFetch(sql string) bool { return strings.Contains(sql, "pg_snapshot_xmax") }

func (s *fetchSaboteur) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if !isFetch(data.SQL) {
		return ctx
	}
	s.reads.Add(1)
	if s.forgetTx {
		s.forget(data.Args)
	}
	if rand.IntN(100) >= s.percent {
		return ctx
	}
	s.failed.Add(1)
	if rand.IntN(10) == 0 {
		ctx, cancel := context.WithCancel(ctx) // as if the connection had broken
		cancel()
		return ctx
	}
	ctx, cancel := context.WithTimeout(ctx, rand.N(6*time.Millisecond))
	return context.WithValue(ctx, cancelKey{}, cancel)
}

// forget empties the arrays of tracked transactions, the first four of the arguments, where they lie: the
// caller sends the same slice.
func (s *fetchSaboteur) forget(args []any) {
	left := 4
	for i := range args {
		if list, ok := args[i].([]int64); ok && left > 0 {
			left--
			args[i] = []int64{}
			s.forgot.Add(int64(len(list)))
		}
	}
}

func (s *fetchSaboteur) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if cancel, ok := ctx.Value(cancelKey{}).(context.CancelFunc); ok {
		cancel()
	}
}
