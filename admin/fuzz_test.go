package admin

import (
	"errors"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

// FuzzCursor: Page.After comes from outside. Invalid cursors are ErrInvalid; valid ones can be used in a statement and
// are unchanged by a round trip.
func FuzzCursor(f *testing.F) {
	f.Add("")
	f.Add(cursor{Done: 2, From: &place{Owner: "shop/book", At: "2006-01-02 15:04:05+00", Name: "m1"}}.String())
	f.Add(cursor{From: &place{ID: 1 << 62}}.String())
	f.Add("e30")
	f.Add("eyJzIjotMX0")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := parseCursor(s)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%q: %v", s, err)
			}
			return
		}
		if c.Done < 0 || c.From != nil && !text.Storable(c.From.Owner+c.From.At+c.From.Name) {
			t.Errorf("%q means %+v", s, c)
		}
		if again, err := parseCursor(c.String()); err != nil || again.String() != c.String() {
			t.Errorf("%q is %s, and then %s, %v", s, c, again, err)
		}
	})
}

// FuzzPreview: Action.Preview comes from outside. Invalid previews are ErrInvalid; valid ones bound the act and are
// unchanged by a round trip.
func FuzzPreview(f *testing.F) {
	at := time.Unix(1_700_000_000, 0)
	for _, in := range []Table{Outbox, Inbox, Queue} {
		f.Add(int(in), asked{upto: 7, at: at, only: map[digest]bool{digestOf("m"): true}}.tried(in))
		f.Add(int(in), asked{upto: 7, at: at}.tried(in))
		f.Add(int(in), "outbox.0.0.more")
	}
	f.Fuzz(func(t *testing.T, in int, s string) {
		q, err := parsePreview(Table(in), s)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%q: %v", s, err)
			}
			return
		}
		if q.only == nil && q.upto == 0 && q.at.IsZero() {
			t.Errorf("%q bounds nothing", s)
		}
		again, err := parsePreview(Table(in), q.tried(Table(in)))
		if err != nil || again.upto != q.upto || !again.at.Equal(q.at) || len(again.only) != len(q.only) {
			t.Errorf("%q is %+v, and then %+v, %v", s, q, again, err)
		}
	})
}
