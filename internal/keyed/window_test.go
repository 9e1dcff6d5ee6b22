package keyed_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/keyed"
)

// TestWatermarkFollows: 16 messages of many keys are in flight, and all take the same time. A crash would repeat the
// finished messages above the watermark.
func TestWatermarkFollows(t *testing.T) {
	const messages, keys, places, allowed = 20_000, 1000, 16, 200
	r := rand.New(rand.NewPCG(1, 1))
	w := keyed.New[int](keyed.Limits{Records: 4096}, 0)
	var running []*keyed.Item[int]
	most, read := 0, int64(0)
	for w.Watermark() < messages {
		for ; read < messages && !w.Full(); read++ {
			w.Add(read, fmt.Append(nil, r.IntN(keys)), 1, 0)
		}
		for len(running) < places {
			it := w.Start(false)
			if it == nil {
				break
			}
			running = append(running, it)
		}
		w.Done(running[0]) // first in, first out: all take the same time
		running = running[1:]
		most = max(most, w.Records()-w.Undone())
	}
	t.Logf("at most %d done messages lay above the watermark", most)
	if most > allowed {
		t.Errorf("%d done messages lay above the watermark, want at most %d", most, allowed)
	}
}

func TestWindowBounds(t *testing.T) {
	w := keyed.New[int](keyed.Limits{Records: 4, Bytes: 100}, 0)
	for pos := range int64(4) {
		if w.Full() {
			t.Fatalf("full with %d", pos)
		}
		w.Add(10*pos, []byte("k"), 1, 0)
	}
	if !w.Full() {
		t.Fatal("not full with 4 records, whatever their positions")
	}
	free := w.Add(100, nil, 1, 0)
	if got := w.Start(false); got.Pos != 0 {
		t.Fatalf("started %d", got.Pos)
	}
	if got := w.Start(false); got != free {
		t.Fatalf("started %v", got)
	}
	w.Done(free)
	if !w.Full() || w.Records() != 5 || w.Undone() != 4 {
		t.Fatal("messages done above the watermark do not count")
	}

	w = keyed.New[int](keyed.Limits{Records: 1000, Bytes: 100}, 0)
	w.Add(1, nil, 99, 0)
	if w.Full() || w.HalfEmpty() {
		t.Fatal("99 of 100 bytes")
	}
	w.Add(2, nil, 1, 0)
	if !w.Full() {
		t.Fatal("100 of 100 bytes")
	}
	w.Done(w.Start(false))
	if w.Full() || !w.HalfEmpty() {
		t.Fatal("1 of 100 bytes")
	}
}

// Retries are started only if allowed, oldest first, and delay no other key.
func TestRetriesLeaveRoom(t *testing.T) {
	now := time.Unix(0, 0)
	w := keyed.New[int](keyed.Limits{Records: 100}, 0)
	for pos := range int64(10) {
		w.Add(pos, []byte{byte(pos % 5)}, 1, 0)
	}
	for range 3 {
		w.Hold(w.Start(false), now, now.Add(time.Second))
	}
	if due, ok := w.Due(); !ok || !due.Equal(now.Add(time.Second)) {
		t.Fatalf("due %v %t", due, ok)
	}
	w.Wake(now.Add(time.Second))
	if fresh, again := w.Ready(); !fresh || !again {
		t.Fatal("not both are ready")
	}
	for _, want := range []struct {
		again bool
		pos   int64
	}{{false, 3}, {true, 0}, {false, 4}, {true, 1}, {true, 2}} {
		if it := w.Start(want.again); it == nil || it.Pos != want.pos {
			t.Fatalf("started %v, want %d", it, want.pos)
		}
	}
	if it := w.Start(true); it != nil {
		t.Fatalf("%d started while the head of its key runs", it.Pos)
	}
	for places, want := range map[int]int{1: 1, 2: 1, 3: 1, 16: 8} {
		if got := keyed.Retries(places); got != want {
			t.Errorf("of %d slots %d are for retries, want %d", places, got, want)
		}
	}
}

func TestBlocked(t *testing.T) {
	w := keyed.New[int](keyed.Limits{Records: 100}, 0)
	head, next := w.Add(1, []byte("k"), 1, 0), w.Add(2, []byte("k"), 1, 0)
	if head.Blocked() || next.Blocked() {
		t.Fatal("a message counts as failed")
	}
	w.Hold(w.Start(false), time.Unix(0, 0), time.Unix(1, 0))
	third := w.Add(3, []byte("k"), 1, 0)
	if head.Blocked() || !next.Blocked() || !third.Blocked() || w.Add(4, []byte("other"), 1, 0).Blocked() {
		t.Fatal("only messages behind the failed one are blocked")
	}
	var behind []int64
	head.Behind(func(it *keyed.Item[int]) { behind = append(behind, it.Pos) })
	if fmt.Sprint(behind) != "[2 3]" {
		t.Fatalf("behind the head are %v", behind)
	}
	w.Wake(time.Unix(1, 0))
	w.Done(w.Start(true))
	if next.Blocked() || third.Blocked() {
		t.Fatal("the head is done")
	}
}

func BenchmarkWindow(b *testing.B) {
	w := keyed.New[int](keyed.Limits{Records: 1 << 20}, 0)
	keys := make([][]byte, 1000)
	for i := range keys {
		keys[i] = fmt.Append(nil, "key", i)
	}
	const inHand = 500
	b.ReportAllocs()
	for i := range b.N {
		w.Add(int64(i), keys[i*7919%1000], 100, i)
		if i >= inHand {
			w.Done(w.Start(false))
		}
	}
}

// TestForget: finished messages are neither counted nor kept, even if a position is stuck.
func TestForget(t *testing.T) {
	w := keyed.New[int](keyed.Limits{Records: 3, Forget: true}, 0)
	w.Add(0, []byte("stuck"), 1, 0)
	stuck := w.Start(false)
	for pos := int64(1); pos < 100; pos += 2 {
		first, second := w.Add(pos, nil, 1, 0), w.Add(pos+1, []byte("k"), 1, 0)
		if !w.Full() {
			t.Fatalf("not full with 3 unfinished messages: %d", w.Records())
		}
		for range 2 {
			w.Start(false)
		}
		w.Done(second)
		w.Done(first)
		if w.Full() || w.Records() != 1 || w.Undone() != 1 || w.Bytes() != 1 || w.Watermark() != 0 {
			t.Fatalf("after %d: %d records, %d undone, watermark %d", pos, w.Records(), w.Undone(), w.Watermark())
		}
	}
	if w.Add(50, nil, 1, 0) == nil {
		t.Error("a finished position cannot be added again")
	}
	w.Done(stuck)
	if w.Oldest() == nil || w.Oldest().Pos != 50 {
		t.Errorf("the oldest is %v", w.Oldest())
	}
	w.Done(w.Start(false))
	if w.Oldest() != nil || w.Records() != 0 {
		t.Errorf("%d records are left", w.Records())
	}
}
