package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/watermill-outbox/examples/demo/booking"
)

// evidence is the state of the database and the broker at the end.
type evidence struct {
	sent      int      // orders, without second copies
	orders    []Stored // on the broker
	bookings  []string // order ids of the rows
	cents     int64    // sum of the accounts
	published int      // outbox rows
	left      int      // outbox rows that are not published
	events    []Stored // on the broker
}

func (d *day) collect(ctx context.Context, sent int) (e evidence, err error) {
	e.sent = sent
	if e.orders, err = d.broker.Read(ctx, d.at.Orders); err != nil {
		return e, fmt.Errorf("read the orders: %w", err)
	}
	if e.events, err = d.broker.Read(ctx, d.at.Bookings); err != nil {
		return e, fmt.Errorf("read the events: %w", err)
	}
	rows, _ := d.pool.Query(ctx, "select order_id from bookings")
	if e.bookings, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
		return e, fmt.Errorf("read the bookings: %w", err)
	}
	err = d.pool.QueryRow(ctx, `
		select (select coalesce(sum(cents), 0)::bigint from accounts),
		       (select count(*) from outbox where published_at is not null),
		       (select count(*) from outbox where published_at is null)`).Scan(&e.cents, &e.published, &e.left)
	if err != nil {
		return e, fmt.Errorf("count in the database: %w", err)
	}
	return e, nil
}

// spoil breaks the evidence on purpose, to show that the count notices: it drops an event, doubles one, or reverses
// their order.
func (e *evidence) spoil(how string) error {
	if how == "" {
		return nil
	}
	if len(e.events) == 0 {
		return fmt.Errorf("spoil: there are no events")
	}
	victim := e.events[len(e.events)/2]
	switch how {
	case "drop":
		e.events = slices.DeleteFunc(e.events, func(s Stored) bool { return s.UUID == victim.UUID })
	case "double":
		victim.UUID = watermill.NewUUID()
		e.events = append(e.events, victim)
	case "reverse":
		slices.Reverse(e.events)
	default:
		return fmt.Errorf("spoil: unknown %q: use drop, double or reverse", how)
	}
	return nil
}

// tally has the counts from the evidence.
type tally struct {
	sent       int // orders
	in         int // messages with orders on the broker, copies included
	duplicates int // copies among them
	missing    int // orders sent that are not on the broker
	booked     int // rows
	unbooked   int // orders without a row
	rebooked   int // rows beyond the first of an order
	cents      int64
	wantCents  int64
	published  int // outbox rows
	left       int // outbox rows not published
	events     int // on the broker, by UUID
	again      int // further copies of an event, same UUID
	lost       int // rows without an event
	doubled    int // events beyond the first of an order, after dedup by UUID
	invented   int // events without a row
	disordered int // events before an earlier one of their account
}

func (e evidence) tally() (t tally, err error) {
	t.sent, t.published, t.left, t.cents = e.sent, e.published, e.left, e.cents

	orders := map[string]bool{} // by UUID
	rows := map[string]int{}    // by order id; 0 = not booked
	for _, s := range e.orders {
		t.in++
		if orders[s.UUID] {
			t.duplicates++
			continue
		}
		orders[s.UUID] = true
		var o booking.Order
		if err := json.Unmarshal(s.Payload, &o); err != nil {
			return t, fmt.Errorf("order %s: %w", s.UUID, err)
		}
		rows[o.ID] = 0
		t.wantCents += o.Cents
	}
	t.missing = max(0, e.sent-len(orders))

	for _, id := range e.bookings {
		t.booked++
		rows[id]++
	}
	for _, n := range rows {
		if n == 0 {
			t.unbooked++
		} else {
			t.rebooked += n - 1
		}
	}

	seen := map[string]bool{}    // events by UUID
	events := map[string]int{}   // by order id
	latest := map[string]int64{} // booking number by account
	for _, s := range e.events {
		if seen[s.UUID] {
			t.again++
			continue
		}
		seen[s.UUID] = true
		t.events++
		var b booking.Booked
		if err := json.Unmarshal(s.Payload, &b); err != nil {
			return t, fmt.Errorf("event %s: %w", s.UUID, err)
		}
		events[b.OrderID]++
		switch {
		case rows[b.OrderID] == 0:
			t.invented++
		case events[b.OrderID] > 1:
			t.doubled++
		}
		if b.Number < latest[b.Account] {
			t.disordered++
		}
		latest[b.Account] = max(latest[b.Account], b.Number)
	}
	for id, n := range rows {
		if n > 0 && events[id] == 0 {
			t.lost++
		}
	}
	return t, nil
}
