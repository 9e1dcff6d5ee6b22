package main

import (
	"sync/atomic"
	"testing"
	"time"
)

// TestTimeOf: a burst has more messages during the stress, and no more before or after it.
func TestTimeOf(t *testing.T) {
	o := options{rate: 100, baseline: 2 * time.Second, stress: time.Second, recovery: time.Second}
	for i, want := range map[int]time.Duration{
		0: 0, 100: time.Second, 200: 2 * time.Second, 400: 2500 * time.Millisecond, 600: 3 * time.Second,
		650: 3500 * time.Millisecond,
	} {
		if got := o.timeOf(i, 4); got != want {
			t.Errorf("message %d is produced at %s, want %s", i, got, want)
		}
	}
}

// TestResult counts six messages, of which one is lost and one may have been committed.
func TestResult(t *testing.T) {
	o := options{rate: 1, baseline: 2 * time.Second, stress: 2 * time.Second, recovery: time.Second}
	l := &ledger{committed: make([]atomic.Int64, 6), arrived: make([]atomic.Int64, 6)}
	at := func(list []atomic.Int64, i int, ms int64) { list[i].Store(ms * int64(time.Millisecond)) }
	for i, m := range []struct{ committed, arrived int64 }{
		{100, 110}, {1000, 1030}, {2100, 4500}, {2200, 2210}, {3000, 0}, {0, 3100},
	} {
		at(l.committed, i, m.committed)
		at(l.arrived, i, m.arrived)
	}
	l.start = time.Now()
	l.came(3)
	got := l.result(o)
	want := result{
		before: 1, under: 1, usual: 10 * time.Millisecond, late: 2400 * time.Millisecond,
		silence: 1400 * time.Millisecond, caughtUp: 500 * time.Millisecond, lost: 1, twice: 1,
	}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
