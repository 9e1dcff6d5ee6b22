package keyed_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/keyed"
)

// model represents a window by plain lists.
type model struct {
	from, high int64
	all        []*entry // by position
	limits     keyed.Limits
}

type entry struct {
	pos           int64
	key           string
	size          int64
	due           time.Time
	failures      int
	since         time.Time
	running, done bool
	item          *keyed.Item[int64]
}

// head reports whether nothing of e's key blocks e: no earlier message is unfinished, and none is running.
func (m *model) head(e *entry) bool {
	if e.running || e.done {
		return false
	}
	for _, o := range m.all {
		if o != e && e.key != "" && o.key == e.key && !o.done && (o.pos < e.pos || o.running) {
			return false
		}
	}
	return true
}

// startable returns the lowest entry that may start.
func (m *model) startable(now time.Time, again bool) *entry {
	for _, e := range m.all {
		if m.head(e) && !e.due.After(now) && (e.failures == 0 || again) {
			return e
		}
	}
	return nil
}

func (m *model) watermark() int64 {
	for _, e := range m.all {
		if !e.done {
			return e.pos
		}
	}
	return m.high
}

// forget drops entries below the watermark.
func (m *model) forget() {
	for len(m.all) > 0 && m.all[0].done {
		m.all = m.all[1:]
	}
}

func (m *model) check(w *keyed.Window[int64]) error {
	undone, failing, bytes, since := 0, 0, int64(0), time.Time{}
	for _, e := range m.all {
		if e.done {
			continue
		}
		undone++
		bytes += e.size
		if e.failures > 0 {
			if failing == 0 || e.since.Before(since) {
				since = e.since
			}
			failing++
		}
	}
	full := len(m.all) >= m.limits.Records || bytes >= m.limits.Bytes
	half := len(m.all) <= m.limits.Records/2 && bytes <= m.limits.Bytes/2
	n, first := w.Failing()
	switch {
	case w.Watermark() != m.watermark():
		return fmt.Errorf("watermark %d, want %d", w.Watermark(), m.watermark())
	case w.Undone() != undone || w.Records() != len(m.all) || w.Bytes() != bytes:
		return fmt.Errorf("undone %d, records %d, bytes %d, want %d %d %d",
			w.Undone(), w.Records(), w.Bytes(), undone, len(m.all), bytes)
	case n != failing || !first.Equal(since):
		return fmt.Errorf("failing %d since %v, want %d since %v", n, first, failing, since)
	case w.Full() != full || w.HalfEmpty() != half:
		return fmt.Errorf("full %t half %t, want %t %t", w.Full(), w.HalfEmpty(), full, half)
	case (w.Oldest() == nil) != (len(m.all) == 0):
		return fmt.Errorf("oldest %v of %d", w.Oldest(), len(m.all))
	}
	return nil
}

// history drives a window and the model with numbers from next, each below its argument, and returns the first
// difference.
func history(next func(n int) int, disorder bool, steps int) error {
	from := int64(next(9))
	m := &model{from: from, high: from, limits: keyed.Limits{Records: 3 + next(40), Bytes: int64(10 + next(200))}}
	w := keyed.New[int64](m.limits, from)
	now := time.Unix(0, 0)
	var running []*entry
	start := func(again bool) error {
		w.Wake(now)
		want := m.startable(now, again)
		fresh, retry := w.Ready()
		it := w.Start(again)
		switch {
		case it == nil && want == nil:
			if fresh || again && retry {
				return fmt.Errorf("a message is ready, but nothing starts")
			}
			return nil
		case it == nil || want == nil || it.Pos != want.pos || it.Value != want.pos:
			return fmt.Errorf("starts %v, want %+v", it, want)
		}
		want.running, want.item = true, it
		running = append(running, want)
		return nil
	}
	finish := func(i, fate int) {
		e := running[i]
		running = slices.Delete(running, i, i+1)
		e.running = false
		switch fate {
		case 1:
			e.due = now.Add(time.Duration(next(5)))
			w.Defer(e.item, e.due)
			return
		case 2:
			if e.failures++; e.failures == 1 {
				e.since = now
			}
			e.due = now.Add(time.Duration(next(5)))
			w.Hold(e.item, now, e.due)
			return
		}
		e.done = true
		w.Done(e.item)
		m.forget()
	}
	for range steps {
		switch next(5) {
		case 0:
			if w.Full() && next(4) > 0 { // messages already fetched still arrive
				continue
			}
			pos := m.high + int64(next(3))
			if disorder && next(4) == 0 {
				pos = from + int64(next(int(m.high-from)+5))
			}
			e := &entry{pos: pos, size: int64(next(9))}
			if k := next(5); k > 0 {
				e.key = fmt.Sprint(k)
			}
			at, known := slices.BinarySearchFunc(m.all, pos, func(e *entry, pos int64) int { return cmp.Compare(e.pos, pos) })
			it := w.Add(pos, []byte(e.key), int(e.size), pos)
			if (it == nil) != known {
				return fmt.Errorf("position %d known %t, want %t", pos, it == nil, known)
			}
			if !known {
				m.all = slices.Insert(m.all, at, e)
				m.high = max(m.high, pos+1)
			}
		case 1:
			if err := start(next(2) == 0); err != nil {
				return err
			}
		case 2:
			if len(running) > 0 {
				finish(next(len(running)), next(4))
			}
		case 3:
			now = now.Add(1)
		case 4:
			if len(m.all) > 0 && m.all[0].item != nil {
				w.Hurry(m.all[0].item, now)
				if m.head(m.all[0]) && m.all[0].due.After(now) {
					m.all[0].due = now
				}
			}
		}
		if err := m.check(w); err != nil {
			return err
		}
	}
	for round := 0; len(m.all) > 0; round++ { // everything left can be finished
		now = now.Add(10)
		before := len(running)
		if err := start(true); err != nil {
			return err
		}
		if len(running) == before && before == 0 || round > 10*steps {
			return fmt.Errorf("stuck with %d", len(m.all))
		}
		finish(0, 0)
		if err := m.check(w); err != nil {
			return err
		}
	}
	return nil
}

// TestWindowModel walks random histories.
func TestWindowModel(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		if err := history(r.IntN, seed%3 == 0, 400); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func FuzzWindow(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8}, false)
	f.Add([]byte{0, 30, 100, 0, 1, 2, 3, 1, 0, 2, 0, 1, 0, 3, 2, 0, 1}, true)
	f.Fuzz(func(t *testing.T, numbers []byte, disorder bool) {
		i := 0
		next := func(n int) int {
			if i >= len(numbers) {
				return 0
			}
			i++
			return int(numbers[i-1]) % n
		}
		if err := history(next, disorder, min(len(numbers), 1000)); err != nil {
			t.Fatal(err)
		}
	})
}
