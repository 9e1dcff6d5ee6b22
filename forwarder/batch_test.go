package forwarder

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// stateError is a database error with its SQLSTATE.
type stateError string

func (e stateError) Error() string    { return "SQLSTATE " + string(e) }
func (e stateError) SQLState() string { return string(e) }

func TestOneRowStopsNoOther(t *testing.T) {
	var written []int
	var alone []error
	bad := map[int]error{3: stateError("22003"), 700: stateError("XX001")}
	b := newBatch(func(_ context.Context, part []int, _ bool) ([]int, error) {
		for _, row := range part {
			if err := bad[row]; err != nil {
				return nil, err
			}
		}
		written = append(written, part...)
		return nil, nil
	}, func(err error) { alone = append(alone, err) })
	var rows []int
	for i := range 1000 {
		rows = append(rows, i)
	}
	b.add(rows, time.Now())
	for range 100 {
		if err := b.part(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(written) != 998 || len(b.rows) != 0 || !slices.Equal(b.delayed, []int{3, 700}) {
		t.Fatalf("%d written, %d left, %v for later", len(written), len(b.rows), b.delayed)
	}
	if len(alone) != 2 || !errors.Is(alone[0], bad[3]) {
		t.Errorf("reported %v", alone)
	}
	if wait := b.pause(time.Now()); wait <= 0 || wait > alonePause {
		t.Errorf("they are retried in %s", wait)
	}
	clear(bad)
	b.add(nil, time.Now().Add(alonePause))
	if err := b.part(t.Context()); err != nil || len(written) != 1000 {
		t.Fatalf("%d written after the fault is gone, %v", len(written), err)
	}
	if b.careful || b.most < 2 {
		t.Errorf("careful %v, %d at a time, after the fault is gone", b.careful, b.most)
	}
}

func TestLockedRowsStopNoOther(t *testing.T) {
	b := newBatch(func(_ context.Context, part []int, careful bool) (locked []int, err error) {
		if slices.Contains(part, 5) && !careful {
			return nil, context.DeadlineExceeded
		}
		for _, row := range part {
			if row == 5 {
				locked = append(locked, row)
			}
		}
		return locked, nil
	}, nil)
	b.add([]int{1, 5, 6, 7}, time.Now())
	for range 10 {
		if err := b.part(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(b.rows) != 0 || !slices.Equal(b.delayed, []int{5}) {
		t.Fatalf("%v left, %v for later", b.rows, b.delayed)
	}
	if left := b.final(t.Context()); !slices.Equal(left, []int{5}) {
		t.Errorf("gave up %v", left)
	}
}

// When the connection is lost, no row is to blame.
func TestLostConnectionsBlameNoRow(t *testing.T) {
	for _, lost := range []error{
		errors.New("EOF"), stateError("57P01"), stateError("53300"), stateError("40P01"), stateError("42501"),
	} {
		calls := 0
		b := newBatch(func(_ context.Context, part []int, _ bool) ([]int, error) {
			calls++
			return nil, lost
		}, nil)
		b.add(make([]int, 2000), time.Now())
		if err := b.part(t.Context()); !errors.Is(err, lost) || b.most != maxSettle || len(b.rows) != 2000 {
			t.Errorf("%v: %v, parts of %d, %d left", lost, err, b.most, len(b.rows))
		}
		if left := b.final(t.Context()); len(left) != 2000 || calls != 2 {
			t.Errorf("%v: gave up %d after %d calls", lost, len(left), calls)
		}
	}
}
