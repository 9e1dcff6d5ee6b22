package admin

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// busyTable is a table of many rows, none of which matches, on a server whose statements wait for a processor first.
type busyTable struct{ rows, steps int64 }

func (b *busyTable) step(_ context.Context, w *walk) ([]found, *place, error) {
	b.steps++
	time.Sleep(50*time.Millisecond + time.Duration(w.batch)*2*time.Microsecond)
	next := &place{ID: w.from.ID + w.batch}
	if next.ID >= b.rows {
		next = nil
	}
	return nil, next, nil
}

// TestAWalkTakesLongStepsUnderLoad: if each statement waits for a processor, small steps only add waits.
func TestAWalkTakesLongStepsUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, w := &busyTable{rows: 100_000}, newWalk(Filter{In: Outbox}, Done)
		begun := time.Now()
		for w.from != nil {
			if _, err := w.next(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(begun); took > 2*time.Second {
			t.Errorf("%d steps took %s", b.steps, took)
		}
	})
}
