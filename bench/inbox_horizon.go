package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/inbox"
)

// claimHorizonGroup is what happens to claims while the transactions of others keep vacuum from cleaning the table.
func (b *bench) claimHorizonGroup() group {
	return group{
		rows: []row{{name: "inbox_pinned_horizon", what: "rounds 8 to 10 of claim and ack 20,000, under a reading and a writing transaction that pin vacuum / with none", floor: 0.8, aim: 1,
			ours: "pinned_claims", rival: "unpinned_claims"}},
		sides: func(context.Context) ([]side, func(), error) {
			return []side{
				{name: "pinned_claims", rounds: 1, run: b.claimingUnderHorizon(true)},
				{name: "unpinned_claims", rounds: 1, run: b.claimingUnderHorizon(false)},
			}, nil, nil
		},
	}
}

// claimingUnderHorizon measures rounds of claims, and after each a few claims that do without the mark: the control, which
// falls and falls under a pin, or there is nothing that the mark could be good for.
func (b *bench) claimingUnderHorizon(pinned bool) func(context.Context) (measured, error) {
	return func(ctx context.Context) (measured, error) {
		d, err := b.newDatabase(ctx)
		if err != nil {
			return measured{}, err
		}
		defer d.drop()
		store, err := inbox.NewStore(d.db, inbox.StoreConfig{}, nil)
		if err != nil {
			return measured{}, err
		}
		n := b.scaled(20_000)
		few := n / 20
		total := horizonRounds*(n+few) + 1 // the last message is the writer's
		s := newSink(total)
		if !pinned {
			s.wanted-- // nobody sends it
		}
		commit, err := d.pinClaims(ctx, pinned, total-1)
		if err != nil {
			return measured{}, err
		}
		defer commit()

		marked, unmarked := claimsOf(store, store.Claim), claimsOf(store, d.unmarked(store))
		var rates, controls []float64
		next := 0
		round := func(n int, claim claims) (float64, error) {
			if err := ourQueue.fill(ctx, d.pool, next, n); err != nil {
				return 0, err
			}
			next += n
			m, err := timed(n, func() error { return claim(ctx, s) })
			if came := s.distinct.Load(); err == nil && came != int64(next) {
				err = fmt.Errorf("nothing is left to claim, but %d messages came instead of %d", came, next)
			}
			return m.value, err
		}
		for range horizonRounds {
			rate, err := round(n, marked)
			if err != nil {
				return measured{}, err
			}
			control, err := round(few, unmarked)
			if err != nil {
				return measured{}, err
			}
			rates, controls = append(rates, rate), append(controls, control)
		}
		m := measured{value: median(rates[horizonRounds-horizonJudged:])}
		m.facts = []string{"rounds " + numbers(rates) + "; control without the mark " + numbers(controls)}
		if pinned && controls[horizonRounds-1] > controls[0]/2 {
			m.broken = "claims without the mark are not slower in the end, so the pins did nothing"
		}
		if err := commit(); err != nil {
			return m, err
		}
		for committed := time.Now(); s.distinct.Load() < s.wanted; {
			if err := marked(ctx, s); err != nil {
				return m, err
			}
			if time.Since(committed) > lateLimit {
				return m, errors.New("the message of the long writer was not claimed within " + lateLimit.String() + " of its commit")
			}
		}
		return m, errors.Join(s.check(), ourQueue.done(ctx, d))
	}
}

// unmarked claims in a transaction of the caller's, which the store's mark has no part in.
func (d *database) unmarked(store *inbox.Store) func(context.Context, inbox.Claim) ([]inbox.Message, error) {
	return func(ctx context.Context, c inbox.Claim) (msgs []inbox.Message, err error) {
		err = outbox.InTx(ctx, d.db, func(ctx context.Context) error {
			msgs, err = store.Claim(ctx, c)
			return err
		})
		return msgs, err
	}
}

// pinClaims opens two transactions, one that has read the table and one that has stored a message, until commit.
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

func numbers(values []float64) string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = number(v)
	}
	return strings.Join(texts, " ")
}
