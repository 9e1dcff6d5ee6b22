package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

// scenario is a stress for a system. stress lasts until ctx ends, and undoes its changes before it returns.
type scenario struct {
	name   string
	burst  int // factor for the number of messages under stress; 0 = 1
	stress func(ctx context.Context, w *world) error
}

// world is the environment that a scenario may break.
type world struct {
	postgres *services.Postgres
	url      string
	fleet    *fleet
}

var scenarios = []scenario{
	{name: "idle in transaction", stress: idleInTransaction},
	{name: "active readers", stress: activeReaders},
	{name: "high load", burst: 4, stress: nothing},
	{name: "worker crash", stress: workerCrash},
	{name: "repeated kills", stress: repeatedKills},
	{name: "server restart", stress: serverRestart},
	{name: "backends killed", stress: backendsKilled},
	{name: "connections exhausted", stress: connectionsExhausted},
}

func nothing(ctx context.Context, _ *world) error {
	<-ctx.Done()
	return nil
}

// over drops an error that is due to the end of the stress.
func over(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// connect opens a connection for the stress, which ends with it.
func (w *world) connect(ctx context.Context) (*pgx.Conn, func(), error) {
	conn, err := pgx.Connect(ctx, w.url)
	return conn, func() {
		if conn != nil {
			_ = conn.Close(context.Background())
		}
	}, err
}

// idleInTransaction holds a transaction that has read and written, so that vacuum cleans nothing.
func idleInTransaction(ctx context.Context, w *world) error {
	conn, end, err := w.connect(ctx)
	defer end()
	if err != nil {
		return over(ctx, err)
	}
	if _, err := conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()"); err != nil {
		return over(ctx, err)
	}
	return nothing(ctx, w)
}

// activeReaders runs four readers of all tables, each in a snapshot that it holds for two seconds.
func activeReaders(ctx context.Context, w *world) error {
	readers := make(chan error)
	for range 4 {
		go func() { readers <- reader(ctx, w) }()
	}
	var errs []error
	for range 4 {
		errs = append(errs, <-readers)
	}
	return errors.Join(errs...)
}

func reader(ctx context.Context, w *world) error {
	conn, end, err := w.connect(ctx)
	defer end()
	for err == nil {
		_, err = conn.Exec(ctx, `BEGIN ISOLATION LEVEL REPEATABLE READ`)
		for _, table := range tables {
			if err == nil {
				_, err = conn.Exec(ctx, fmt.Sprintf(`DO $$ BEGIN IF to_regclass('%[1]s') IS NOT NULL THEN
 PERFORM count(*) FROM %[1]s t WHERE t::text = ''; END IF; END $$`, table))
			}
		}
		if err == nil {
			_, err = conn.Exec(ctx, `SELECT pg_sleep(2)`)
		}
		if err == nil {
			_, err = conn.Exec(ctx, `COMMIT`)
		}
	}
	return over(ctx, err)
}

// workerCrash kills the worker that was started first, River's leader, and restarts it halfway through.
func workerCrash(ctx context.Context, w *world) error {
	end, _ := ctx.Deadline()
	w.fleet.kill(0)
	wait(ctx, time.Until(end)/2)
	return errors.Join(w.fleet.start(0), nothing(ctx, w))
}

// repeatedKills kills one worker after another, every five seconds, and restarts it immediately.
func repeatedKills(ctx context.Context, w *world) error {
	for n := 0; wait(ctx, 5*time.Second); n = (n + 1) % workerCount {
		w.fleet.kill(n)
		if err := w.fleet.start(n); err != nil {
			return err
		}
	}
	return nil
}

// serverRestart ends all sessions, as an upgrade does.
func serverRestart(ctx context.Context, w *world) error {
	if err := w.postgres.Restart(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	return nothing(ctx, w)
}

// backendsKilled ends two worker sessions per second.
func backendsKilled(ctx context.Context, w *world) error {
	conn, end, err := w.connect(ctx)
	defer end()
	for err == nil && wait(ctx, time.Second/2) {
		_, err = conn.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1
 ORDER BY random() LIMIT 1`, workerName)
	}
	return over(ctx, err)
}

// connectionsExhausted takes all free connections of the server, and those that become free.
func connectionsExhausted(ctx context.Context, w *world) error {
	taken := 0
	for ctx.Err() == nil {
		_, end, err := w.connect(ctx)
		defer end()
		if err == nil {
			taken++
		} else if wait(ctx, 100*time.Millisecond); taken == 0 {
			return over(ctx, err)
		}
	}
	return nil
}

// wait waits for d, and reports whether ctx lasted that long.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
