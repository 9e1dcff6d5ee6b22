package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/queue"
)

// claimHorizonGroup measures claims while open transactions prevent vacuum from cleaning the table.
func (b *bench) claimHorizonGroup() group {
	return group{
		about: 120 * time.Second,
		rows: []row{
			{name: "queue_pinned_horizon", what: "rounds 8 to 10 of claim and ack 20,000, under a reading " +
				"and a writing transaction that pin vacuum / with none", floor: 0.8, aim: 1,
				ours: "pinned_claims", rival: "unpinned_claims"},
		},
		sides: func(context.Context) ([]side, func(), error) {
			return []side{
				{name: "pinned_claims", lasting: &claimHorizon{bench: b, pinned: true}},
				{name: "unpinned_claims", lasting: &claimHorizon{bench: b}},
			}, nil, nil
		},
	}
}

// claimHorizon runs rounds of claims, each followed by a few claims without the cursor. These are the control: under a
// pin they must keep slowing down, or the cursor would be useless.
type claimHorizon struct {
	bench  *bench
	pinned bool
	*database
	sink             *sink
	commit           func() error
	marked, unmarked claims
	n, few           int // messages per round
	next             int
	controls         []float64
}

func (h *claimHorizon) begin(ctx context.Context) (err error) {
	if h.database, err = h.bench.newServer(ctx); err != nil {
		return err
	}
	store, err := queue.NewStore(h.db, queue.StoreConfig{}, nil)
	if err != nil {
		return err
	}
	h.marked, h.unmarked = claimsOf(store, store.Claim), claimsOf(store, h.withoutCursor(store))
	h.n = h.bench.scaled(20_000)
	h.few = h.n / 20
	last := lastingMost * (h.n + h.few) // the writer's messages
	h.sink = newSink(last + 1)
	h.commit, err = h.pinClaims(ctx, h.pinned, last)
	return err
}

func (h *claimHorizon) round(ctx context.Context) (measured, error) {
	rate, err := h.claiming(ctx, h.n, h.marked)
	if err != nil {
		return measured{}, err
	}
	control, err := h.claiming(ctx, h.few, h.unmarked)
	h.controls = append(h.controls, control)
	return measured{value: rate}, err
}

// claiming measures the claims of n more messages.
func (h *claimHorizon) claiming(ctx context.Context, n int, claim claims) (float64, error) {
	if err := ourQueue.fill(ctx, h.pool, h.next, n); err != nil {
		return 0, err
	}
	h.next += n
	m, err := timed(n, func() error { return claim(ctx, h.sink) })
	if came := h.sink.distinct.Load(); err == nil && came != int64(h.next) {
		err = fmt.Errorf("nothing is left to claim, but %d messages came instead of %d", came, h.next)
	}
	return m.value, err
}

func (h *claimHorizon) end(ctx context.Context) (measured, error) {
	m := measured{facts: []string{"control without the cursor " + numbers(h.controls)}}
	if err := h.commit(); err != nil {
		return m, err
	}
	h.sink.wanted = int64(h.next)
	if h.pinned {
		if median(h.controls[len(h.controls)-lastingCounted:]) > median(h.controls[:lastingCounted])/2 {
			m.broken = "claims without the cursor are not slower in the end, so the pins did nothing"
		}
		h.sink.wanted++
	}
	committed := time.Now()
	for h.sink.distinct.Load() < h.sink.wanted {
		if err := h.marked(ctx, h.sink); err != nil {
			return m, err
		}
	}
	if time.Since(committed) > lateLimit {
		m.broken = "the message of the long writer was not claimed within " + lateLimit.String() + " of its commit"
	}
	return m, errors.Join(h.sink.check(), ourQueue.done(ctx, h.database))
}

func (h *claimHorizon) close() {
	if h.commit != nil {
		_ = h.commit() // end returns the error
	}
	if h.database != nil {
		h.drop()
	}
}

// withoutCursor claims in a transaction of the caller, where the store does not use its cursor.
func (d *database) withoutCursor(store *queue.Store) func(context.Context, queue.Claim) ([]queue.Message, error) {
	return func(ctx context.Context, c queue.Claim) (msgs []queue.Message, err error) {
		err = outbox.InTx(ctx, d.db, func(ctx context.Context) error {
			msgs, err = store.Claim(ctx, c)
			return err
		})
		return msgs, err
	}
}

// pinClaims opens two transactions until commit is called: one that has read the table and one that has stored a
// message.
func (d *database) pinClaims(ctx context.Context, pinned bool, index int) (commit func() error, err error) {
	var held []*pgx.Conn
	commit = func() (err error) {
		for _, conn := range held {
			_, failed := conn.Exec(ctx, "COMMIT")
			err = errors.Join(err, failed, conn.Close(context.WithoutCancel(ctx)))
		}
		held = nil
		return err
	}
	if !pinned {
		return commit, nil
	}
	for _, pin := range []func(*pgx.Conn) error{
		func(conn *pgx.Conn) error { _, err := conn.Exec(ctx, "SELECT count(*) FROM inbox_queue"); return err },
		func(conn *pgx.Conn) error { return ourQueue.fill(ctx, conn, index, 1) },
	} {
		conn, err := pgx.Connect(ctx, d.url)
		if err != nil {
			return nil, errors.Join(err, commit())
		}
		held = append(held, conn)
		if _, err = conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ"); err == nil {
			err = pin(conn)
		}
		if err != nil {
			return nil, errors.Join(err, commit())
		}
	}
	return commit, nil
}
