package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/millrace-go/watermill-outbox/examples/demo/booking"
)

// goodDay returns evidence without contradictions: six orders of two accounts, one of them twice, one event sent twice.
func goodDay(t *testing.T) evidence {
	t.Helper()
	encode := func(v any) []byte {
		payload, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return payload
	}
	e := evidence{sent: 6, published: 6}
	for i := range 6 {
		o := booking.Order{ID: fmt.Sprint("order-", i), Account: fmt.Sprint("account-", i%2), Cents: 10}
		e.orders = append(e.orders, Stored{UUID: fmt.Sprint("in-", i), Payload: encode(o)})
		e.bookings = append(e.bookings, o.ID)
		e.cents += o.Cents
		b := booking.Booked{OrderID: o.ID, Account: o.Account, Number: int64(1 + i/2)}
		e.events = append(e.events, Stored{UUID: fmt.Sprint("out-", i), Payload: encode(b)})
	}
	e.orders = append(e.orders, e.orders[2])
	e.events = append(e.events, e.events[1])
	return e
}

func TestGoodDayAddsUp(t *testing.T) {
	tally, err := goodDay(t).tally()
	if err != nil {
		t.Fatal(err)
	}
	if !tally.write(io.Discard) {
		t.Errorf("does not add up: %+v", tally)
	}
	if tally.in != 7 || tally.duplicates != 1 || tally.booked != 6 || tally.events != 6 || tally.again != 1 {
		t.Errorf("miscounted: %+v", tally)
	}
}

func TestEachFaultIsNoticed(t *testing.T) {
	for name, test := range map[string]struct {
		row   string // the row of the table that must show WRONG
		fault func(e *evidence)
	}{
		"order lost by the broker": {"orders in", func(e *evidence) { e.sent++ }},
		"order not booked":         {"booked", func(e *evidence) { e.bookings = e.bookings[1:] }},
		"order booked twice": {"duplicates absorbed", func(e *evidence) {
			e.bookings = append(e.bookings, e.bookings[0])
		}},
		"one twice, another not":    {"booked", func(e *evidence) { e.bookings[0] = e.bookings[1] }},
		"balance without a booking": {"booked", func(e *evidence) { e.cents += 10 }},
		"outbox row never written":  {"events published", func(e *evidence) { e.published-- }},
		"outbox row not published":  {"events published", func(e *evidence) { e.published--; e.left++ }},
		"event lost":                {"lost", func(e *evidence) { e.events = slices.Delete(e.events, 2, 3) }},
		"event invented":            {"events on the broker", func(e *evidence) { e.bookings = e.bookings[:5] }},
		"event twice, two UUIDs": {"doubled after dedup", func(e *evidence) {
			e.events = append(e.events, Stored{"new", e.events[0].Payload})
		}},
		"event before an earlier one": {"out of order in their account", func(e *evidence) {
			e.events[0], e.events[2] = e.events[2], e.events[0]
		}},
	} {
		t.Run(name, func(t *testing.T) {
			e := goodDay(t)
			test.fault(&e)
			tally, err := e.tally()
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			if tally.write(&out) {
				t.Error("it adds up")
			}
			for line := range strings.Lines(out.String()) {
				if strings.HasPrefix(line, "  "+test.row+"  ") && strings.Contains(line, "WRONG") {
					return
				}
			}
			t.Errorf("the row %q is not marked as wrong", test.row)
		})
	}
}

func TestSpoilBreaksWhatAddsUp(t *testing.T) {
	for _, how := range []string{"drop", "double", "reverse"} {
		e := goodDay(t)
		if err := e.spoil(how); err != nil {
			t.Fatal(err)
		}
		tally, err := e.tally()
		if err != nil {
			t.Fatal(err)
		}
		if tally.write(io.Discard) {
			t.Errorf("%s: it adds up", how)
		}
	}
	e := goodDay(t)
	if err := e.spoil("nothing"); err == nil {
		t.Error("an unknown way to spoil is accepted")
	}
}

func TestEveryTenthOrderComesTwice(t *testing.T) {
	for _, n := range []int{1, 20, 300, 1001} {
		copies := map[string]int{}
		for _, c := range makeOrders(n) {
			if copies[c.UUID]++; copies[c.UUID] != c.Number {
				t.Errorf("%d orders: copy %d of %s comes as number %d", n, c.Number, c.UUID, copies[c.UUID])
			}
		}
		twice := 0
		for _, k := range copies {
			twice += k - 1
		}
		if len(copies) != n || twice != (n+9)/10 {
			t.Errorf("%d orders, %d of them twice; want %d and %d", len(copies), twice, n, (n+9)/10)
		}
	}
}
