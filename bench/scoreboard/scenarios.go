package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

// scenario is what happens to a system. stress lasts until ctx is over, and undoes what it did before it returns.
type scenario struct {
	name   string
	burst  int // times as many messages, under stress; 0 = as many
	stress func(ctx context.Context, w *world) error
}

// world is what a scenario may break.
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

// over says whether an error is that of a stress that ended.
func over(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// connect opens a connection of the stress, which ends when it does.
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

// activeReaders are four that read all of the tables, each in a snapshot that it holds for two seconds.
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

// workerCrash kills the worker that was started first, River's leader, and starts it again at half of the time.
func workerCrash(ctx context.Context, w *world) error {
	end, _ := ctx.Deadline()
	w.fleet.kill(0)
	wait(ctx, time.Until(end)/2)
	return errors.Join(w.fleet.start(0), nothing(ctx, w))
}

// repeatedKills kills one worker after the other, every five seconds, and starts it at once.
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

// backendsKilled ends two sessions of workers a second.
func backendsKilled(ctx context.Context, w *world) error {
	conn, end, err := w.connect(ctx)
	defer end()
	for err == nil && wait(ctx, time.Second/2) {
		_, err = conn.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1
 ORDER BY random() LIMIT 1`, workerName)
	}
	return over(ctx, err)
}

// connectionsExhausted takes all connections that the server has left, and those that come free.
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

// wait says whether ctx lasted.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
