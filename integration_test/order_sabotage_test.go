package integration_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// fetchSaboteur is a tracer on a forwarder's pool that makes some reads of the outbox time out or break, or removes the
// tracked transactions from all of them.
type fetchSaboteur struct {
	every    int64 // reads for each one that fails, an early one first; 0 = none fails
	forgetTx bool  // leaves a plain id > low
	reads    atomic.Int64
	failed   atomic.Int64
	forgot   atomic.Int64
	took     atomic.Int64 // nanoseconds, total of all reads
}

func (s *fetchSaboteur) String() string {
	reads := max(s.reads.Load(), 1)
	return fmt.Sprintf("%d reads, %d of them failed, on average they took %s", reads, s.failed.Load(),
		time.Duration(s.took.Load()/reads))
}

type sabotagedKey struct{}

type sabotaged struct {
	begun  time.Time
	cancel context.CancelFunc
}

func isFetch(sql string) bool { return strings.Contains(sql, "pg_snapshot_xmax") }

func (s *fetchSaboteur) TraceQueryStart(
	ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData,
) context.Context {
	if !isFetch(data.SQL) {
		return ctx
	}
	if s.forgetTx {
		s.forget(data.Args)
	}
	read := sabotaged{begun: time.Now(), cancel: func() {}}
	if n := s.reads.Add(1); s.every > 0 && n%s.every == s.every/4 {
		if s.failed.Add(1)%10 == 0 {
			ctx, read.cancel = context.WithCancel(ctx) // like a broken connection
			read.cancel()
		} else {
			ctx, read.cancel = context.WithTimeout(ctx, rand.N(6*time.Millisecond))
		}
	}
	return context.WithValue(ctx, sabotagedKey{}, read)
}

// forget empties the arrays of tracked transactions, the first four arguments, in place: the caller sends the same
// slice.
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
	if read, ok := ctx.Value(sabotagedKey{}).(sabotaged); ok {
		s.took.Add(int64(time.Since(read.begun)))
		read.cancel()
	}
}
