//go:build unix

package integration_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const (
	auditTopic  = "audit"  // of what a handler publishes while it runs
	eventsTopic = "events" // of what it returns
	letterTopic = "dead_letters"
	consumer    = "book"
)

// makeShop makes the tables of a shop with the given number of keys, key-0 and on.
func makeShop(t testing.TB, h handle, keys int) {
	t.Helper()
	h.exec(t, `create table counters (key text primary key, n bigint not null)`)
	h.exec(t, `create table bookings (order_id text not null, key text not null)`)
	h.exec(t, `create table events (uuid text not null, key text not null, n bigint not null)`)
	h.exec(t, `insert into counters select 'key-' || i, 0 from generate_series(0, $1::int - 1) i`, keys)
}

// event is the payload of what a booking publishes. The events of a key are numbered from 1 in the order
// in which their transactions followed one another, without gaps.
type event struct {
	Key string
	N   int64
}

func (e event) message() *message.Message {
	payload, _ := json.Marshal(e)
	msg := newMessage(string(payload))
	outbox.SetKey(msg, e.Key)
	return msg
}

// shop is the handler of the crash tests. It leaves a trace of all that it does, so that everybody can count.
type shop struct {
	db  *outbox.DB
	pub *outbox.Publisher
}

var errUndone = errors.New("undone on purpose")

// book books an order in the transaction of ctx, once per call: no constraint keeps it from being booked twice.
// It publishes the first of its two events and returns the second. The row lock on the counter makes
// transactions of one key follow one another.
func (s shop) book(ctx context.Context, order, key string) ([]*message.Message, error) {
	tx, err := (*core.DB)(s.db).Tx(ctx)
	if err != nil {
		return nil, err
	}
	var n int64
	err = drive.Collect(ctx, tx, func(rows drive.Rows) error { return rows.Scan(&n) },
		`update counters set n = n + 2 where key = $1 returning n`, key)
	if err != nil {
		return nil, fmt.Errorf("count: %w", err)
	}
	first, second := event{key, n - 1}.message(), event{key, n}.message()
	if _, err := tx.Exec(ctx, `insert into bookings values ($1, $2)`, order, key); err != nil {
		return nil, fmt.Errorf("book: %w", err)
	}
	if _, err := tx.Exec(ctx, `insert into events values ($1, $3, $4::bigint - 1), ($2, $3, $4::bigint)`, first.UUID,
		second.UUID, key, n); err != nil {
		return nil, fmt.Errorf("note events: %w", err)
	}
	if err := s.pub.PublishContext(ctx, auditTopic, first); err != nil {
		return nil, fmt.Errorf("publish: %w", err)
	}
	err = outbox.InTx(ctx, s.db, func(ctx context.Context) error {
		if err := s.pub.PublishContext(ctx, auditTopic, event{key, -1}.message()); err != nil {
			return err
		}
		return errUndone
	})
	if !errors.Is(err, errUndone) {
		return nil, fmt.Errorf("savepoint: %w", err)
	}
	return []*message.Message{second}, nil
}

// place is what the middlewares do around book, for tests that have no Router.
func (s shop) place(ctx context.Context, order, key string) error {
	return outbox.InTx(ctx, s.db, func(ctx context.Context) error {
		q, err := (*core.DB)(s.db).Tx(ctx)
		if err != nil {
			return err
		}
		var ours, standby bool
		var attempts int
		var seconds float64
		var note int64
		err = drive.Collect(ctx, q, func(rows drive.Rows) error {
			return rows.Scan(&ours, &attempts, &seconds, &note, &standby)
		},
			sqltext.Tables{}.Render(sqltext.ClaimInbox), consumer, order, nil)
		if err != nil || !ours {
			return err
		}
		events, err := s.book(ctx, order, key)
		if err != nil {
			return err
		}
		return (*core.Publisher)(s.pub).Capture(ctx, eventsTopic, events...)
	})
}

func newShop(db *outbox.DB) (shop, error) {
	pub, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, nil)
	return shop{db, pub}, err
}
