package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	outbox "github.com/millrace-go/watermill-outbox"
)

const tables = `
CREATE TABLE IF NOT EXISTS events (account text, version int, event jsonb NOT NULL, PRIMARY KEY (account, version));
CREATE TABLE IF NOT EXISTS balances (account text PRIMARY KEY, version int NOT NULL, balance bigint NOT NULL)`

const topic = "accounts"

// errConflict reports that somebody else has appended to the account since it was read.
var errConflict = errors.New("the account has changed")

// event is a change of an account: a deposit (more than 0) or a withdrawal.
type event struct {
	Account string `json:"account"`
	Version int    `json:"version"`
	Amount  int64  `json:"amount"`
}

// account is the state that results from its events.
type account struct {
	version int
	balance int64
}

func (a account) after(e event) account {
	return account{version: e.Version, balance: a.balance + e.Amount}
}

type store struct {
	db   *outbox.DB
	feed *outbox.Publisher
}

// load reads an account from its events.
func load(ctx context.Context, tx pgx.Tx, name string) (a account, err error) {
	rows, err := tx.Query(ctx, `SELECT event FROM events WHERE account = $1 ORDER BY version`, name)
	if err != nil {
		return a, err
	}
	events, err := pgx.CollectRows(rows, pgx.RowTo[event])
	for _, e := range events {
		a = a.after(e)
	}
	return a, err
}

// append writes the next event of an account and publishes it: both, or neither. If two have read the same version, the
// primary key lets only one of them append.
func (s *store) append(ctx context.Context, tx pgx.Tx, name string, read account, amount int64) error {
	e := event{Account: name, Version: read.version + 1, Amount: amount}
	body, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `INSERT INTO events (account, version, event) VALUES ($1, $2, $3)`, name, e.Version,
		body); err != nil {
		if pgErr := (*pgconn.PgError)(nil); errors.As(err, &pgErr) && pgErr.Code == "23505" {
			return errConflict
		}
		return err
	}
	// The identity stays the same, however often the feed is published.
	msg := message.NewMessage(fmt.Sprintf("%s/%d", name, e.Version), body)
	outbox.SetAggregate(msg, "account", name)
	return s.feed.PublishContext(ctx, topic, msg)
}

func (s *store) deposit(ctx context.Context, name string, amount int64) error {
	return s.change(ctx, name, func(account) (int64, error) { return amount, nil })
}

func (s *store) withdraw(ctx context.Context, name string, amount int64) error {
	return s.change(ctx, name, func(a account) (int64, error) {
		if a.balance < amount {
			return 0, fmt.Errorf("%s has %d and not %d", name, a.balance, amount)
		}
		return -amount, nil
	})
}

// change decides on the current state of an account, and again if the account changed meanwhile.
func (s *store) change(ctx context.Context, name string, decide func(account) (int64, error)) error {
	for {
		err := outbox.InTx(ctx, s.db, func(ctx context.Context) error {
			tx, err := outbox.PgxTx(ctx)
			if err != nil {
				return err
			}
			a, err := load(ctx, tx, name)
			if err != nil {
				return err
			}
			amount, err := decide(a)
			if err != nil {
				return err
			}
			return s.append(ctx, tx, name, a, amount)
		})
		if !errors.Is(err, errConflict) {
			return err
		}
	}
}

// project keeps the table of balances. The inbox lets each event through once, and they arrive in order; the version
// would show a violation.
func project(msg *message.Message) error {
	tx, err := outbox.PgxTx(msg.Context())
	if err != nil {
		return err
	}
	var e event
	if err := json.Unmarshal(msg.Payload, &e); err != nil {
		return outbox.Poison(err)
	}
	return apply(msg.Context(), tx, e)
}

func apply(ctx context.Context, tx pgx.Tx, e event) error {
	tag, err := tx.Exec(ctx, `INSERT INTO balances AS b (account, version, balance) SELECT $1, $2, $3 WHERE $2 = 1
 OR EXISTS (SELECT FROM balances WHERE account = $1)
ON CONFLICT (account) DO UPDATE SET version = excluded.version, balance = b.balance + excluded.balance
 WHERE b.version = excluded.version - 1`,
		e.Account, e.Version, e.Amount)
	if err == nil && tag.RowsAffected() == 0 {
		var version int
		err = tx.QueryRow(ctx, `SELECT version FROM balances WHERE account = $1`, e.Account).Scan(&version)
		if err == nil && version < e.Version {
			err = fmt.Errorf("%s is at version %d: event %d comes too early", e.Account, version, e.Version)
		}
	}
	return err // an event that a rebuild has already seen changes nothing
}

// rebuild recreates the projection from all events. Events that the feed delivers meanwhile wait for the lock, and are
// then recognised as known.
func (s *store) rebuild(ctx context.Context) error {
	return outbox.InTx(ctx, s.db, func(ctx context.Context) error {
		tx, err := outbox.PgxTx(ctx)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `TRUNCATE balances`) // nothing is projected until this is committed
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO balances SELECT account, max(version), sum((event->>'amount')::bigint) `+
			`FROM events GROUP BY account`)
		return err
	})
}
