package main

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/examples/internal/demotest"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

func TestMain(m *testing.M) { demotest.Services(m, main) }

func TestAccounts(t *testing.T) {
	postgres, err := services.StartPostgres(t.Context(), services.Options{Log: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	defer postgres.Close()
	url, err := postgres.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), url+"&pool_max_conns=20")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	s, err := open(t.Context(), pool, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	router, err := s.router(watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- outbox.Run(ctx, router) }()

	value := func(query string) (v string) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), query).Scan(&v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	projected := func(when string) {
		t.Helper()
		const different = `SELECT count(*)::text FROM (SELECT account, max(version) AS version, sum((event->>'amount')::bigint) AS balance FROM events GROUP BY account) e
 FULL JOIN balances b USING (account) WHERE (e.version, e.balance) IS DISTINCT FROM (b.version, b.balance::numeric)`
		for deadline := time.Now().Add(5 * time.Minute); value(different) != "0"; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %s balances differ from the events", when, value(different))
			}
		}
	}

	// Eight concurrent withdrawals from one account, for more than its balance.
	if err := s.deposit(t.Context(), "acme", 100); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	var mu sync.Mutex
	withdrawn := 0
	for range 8 {
		group.Go(func() {
			for range 4 {
				if s.withdraw(t.Context(), "acme", 10) == nil {
					mu.Lock()
					withdrawn++
					mu.Unlock()
				}
			}
		})
	}
	group.Wait()
	if withdrawn != 10 {
		t.Errorf("%d times 10 were withdrawn from 100", withdrawn)
	}
	projected("after withdrawals")
	if got := value(`SELECT version || ' ' || balance FROM balances WHERE account = 'acme'`); got != "11 0" {
		t.Errorf("version and balance are %s", got)
	}

	// A reader of an old version cannot append, and publishes nothing.
	err = outbox.InTx(t.Context(), s.db, func(ctx context.Context) error {
		tx, err := outbox.PgxTx(ctx)
		if err != nil {
			return err
		}
		return s.append(ctx, tx, "acme", account{version: 3}, 1000)
	})
	if !errors.Is(err, errConflict) {
		t.Errorf("an old version: %v", err)
	}

	// A copy of an event changes nothing, even with the identity of another message.
	for _, id := range []string{"acme/11", "another"} {
		msg := message.NewMessage(id, []byte(`{"account":"acme","version":11,"amount":-10}`))
		outbox.SetAggregate(msg, "account", "acme")
		if err := outbox.InTx(t.Context(), s.db, func(ctx context.Context) error {
			return s.feed.PublishContext(ctx, topic, msg)
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.deposit(t.Context(), "acme", 1); err != nil {
		t.Fatal(err)
	}
	projected("after copies")

	// Rebuilt while events arrive.
	group.Go(func() {
		for range 50 {
			if err := s.deposit(t.Context(), "other", 1); err != nil {
				t.Error(err)
			}
		}
	})
	for range 5 {
		if err := s.rebuild(t.Context()); err != nil {
			t.Error(err)
		}
	}
	group.Wait()
	projected("after rebuilding")
	if dead := value(`SELECT count(*)::text FROM outbox WHERE dead_at IS NOT NULL`); dead != "0" {
		t.Errorf("%s messages are dead", dead)
	}
	const cleans = `SELECT bool_and((facts->>'inbox_retention')::bigint > 0)::text FROM outbox_forwarders`
	if value(cleans) != "true" {
		t.Error("old rows of the inbox are not deleted")
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
