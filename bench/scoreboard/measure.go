package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

const (
	producers = 16
	patience  = 2 * time.Minute // for missing messages at the end
)

// ledger holds the time of each message's commit and first arrival, in nanoseconds from the start; 0 = none.
type ledger struct {
	start          time.Time
	committed      []atomic.Int64
	arrived        []atomic.Int64
	twice, strange atomic.Int64
}

func (l *ledger) now() int64 { return max(1, int64(time.Since(l.start))) }

func (l *ledger) came(i int) {
	if i < 0 || i >= len(l.arrived) {
		l.strange.Add(1)
	} else if !l.arrived[i].CompareAndSwap(0, l.now()) {
		l.twice.Add(1)
	}
}

// missing counts committed messages that have not arrived.
func (l *ledger) missing() (n int) {
	for i := range l.committed {
		if l.committed[i].Load() != 0 && l.arrived[i].Load() == 0 {
			n++
		}
	}
	return n
}

// measure runs one scenario with one system.
func measure(ctx context.Context, o options, sc scenario, sys system) (r result, err error) {
	postgres, err := services.StartPostgres(ctx, services.Options{})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, postgres.Close()) }()
	url, err := postgres.NewDatabase(ctx)
	if err != nil {
		return r, err
	}
	pool, err := newPool(url, "scoreboard-producer", producers)
	if err != nil {
		return r, err
	}
	defer pool.Close()
	if err := sys.migrate(ctx, pool); err != nil {
		return r, err
	}
	produce, err := sys.produce(pool)
	if err != nil {
		return r, err
	}
	burst := max(sc.burst, 1)
	n := int(float64(o.rate) * (o.baseline + o.stress*time.Duration(burst) + o.recovery).Seconds())
	l := &ledger{committed: make([]atomic.Int64, n), arrived: make([]atomic.Int64, n)}
	w := &world{postgres: postgres, url: url}
	if w.fleet, err = newFleet(sys, url, l.came); err != nil {
		return r, err
	}
	defer w.fleet.stop()
	for worker := range workerCount {
		if err := w.fleet.start(worker); err != nil {
			return r, err
		}
	}
	if !wait(ctx, 5*time.Second) { // time to acquire lanes or to elect a leader
		return r, ctx.Err()
	}
	l.start = time.Now()
	produced := make(chan struct{})
	go func() {
		defer close(produced)
		l.produce(ctx, o, burst, produce)
	}()
	if !wait(ctx, o.baseline) {
		return r, ctx.Err()
	}
	stressed, cancel := context.WithTimeout(ctx, o.stress)
	defer cancel()
	if err := sc.stress(stressed, w); err != nil {
		return r, err
	}
	<-produced
	for end := time.Now().Add(patience); l.missing() > 0 && time.Now().Before(end) && ctx.Err() == nil; {
		wait(ctx, 50*time.Millisecond)
	}
	w.fleet.stop()
	if n := l.strange.Load(); n > 0 {
		return r, fmt.Errorf("%d messages came that were never produced", n)
	}
	r = l.result(o)
	r.dead, r.size, err = left(ctx, url)
	return r, errors.Join(err, ctx.Err())
}

// produce commits all messages, each at its time or as soon as possible after it.
func (l *ledger) produce(ctx context.Context, o options, burst int, commit func(context.Context, int) error) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range producers {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(l.committed); i = int(next.Add(1)) - 1 {
				if !wait(ctx, time.Until(l.start.Add(o.timeOf(i, burst)))) {
					return
				}
				if err := commit(ctx, i); err == nil {
					l.committed[i].Store(l.now())
				} else if !wait(ctx, 100*time.Millisecond) { // it may have been committed
					return
				}
			}
		})
	}
	all.Wait()
}

// timeOf returns when message i is produced, counted from the start.
func (o options) timeOf(i, burst int) time.Duration {
	at := func(i float64, faster int) time.Duration {
		return time.Duration(i / float64(o.rate*faster) * float64(time.Second))
	}
	before := float64(o.rate) * o.baseline.Seconds()
	under := float64(o.rate*burst) * o.stress.Seconds()
	switch i := float64(i); {
	case i < before:
		return at(i, 1)
	case i < before+under:
		return o.baseline + at(i-before, burst)
	default:
		return o.baseline + o.stress + at(i-before-under, 1)
	}
}

// tables lists the tables of all systems.
var tables = []string{"outbox", "inbox_queue", "river_job"}

// left returns the dead rows and the size of the tables at the end.
func left(ctx context.Context, url string) (dead, size int64, err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, `SELECT coalesce(sum(n_dead_tup), 0), coalesce(sum(pg_total_relation_size(relid)), 0)
 FROM pg_stat_user_tables WHERE relname = ANY ($1)`, tables).Scan(&dead, &size)
	return dead, size, err
}
