package dispatch_test

import (
	"slices"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

func TestHandBack(t *testing.T) {
	d := newDesk(t, dispatch.Config{}, 0, 1)
	d.put(0, "k", "a", 1, 2)
	d.put(0, "", "a", 3)
	d.put(1, "", "a", 4)
	d.read()
	c1, c3 := d.next(1), d.next(3)
	lane0 := d.terms[0]
	d.b.Release(lane0)
	d.after()
	if !slices.Equal(d.recall, []*dispatch.Call{c1, c3}) {
		t.Fatalf("%d are recalled", len(d.recall))
	}
	d.returned(d.next(4), dispatch.OK)
	d.none() // 2 waits for the next owner
	if a := d.begin(); a.Due[0] != 0 || len(a.IDs) > 0 {
		t.Fatalf("requested %v of a released lane", a)
	}
	d.returned(c3, dispatch.Aborted)
	d.returned(c1, dispatch.Retry)
	if len(d.free) > 0 {
		t.Fatal("free with a result unsettled")
	}
	d.settle()
	if !slices.Equal(d.free, []dispatch.Assignment{lane0}) {
		t.Fatalf("free: %v", d.free)
	}
	d.b.LanesLost(lane0)
	d.after()
	d.take(0)
	d.now = d.now.Add(time.Second)
	got := d.drain()
	slices.Sort(got)
	d.want(got, 1, 2, 3)
	if len(d.free) != 1 {
		t.Fatalf("free: %v", d.free)
	}
}

func TestHandBackOfAnIdleLaneIsFreeAtOnce(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.b.Release(d.terms[0], dispatch.Assignment{Lane: 5, Epoch: 1})
	d.after()
	d.b.Release(d.terms[0])
	d.after()
	if !slices.Equal(d.free, []dispatch.Assignment{d.terms[0]}) {
		t.Fatalf("free: %v", d.free)
	}
}

func TestLostLane(t *testing.T) {
	for _, verdict := range []dispatch.Verdict{
		dispatch.OK, dispatch.Retry, dispatch.Permanent, dispatch.Unavailable, dispatch.Aborted,
	} {
		d := newDesk(t, dispatch.Config{KeyRows: 1})
		d.put(0, "k", "a", 1, 2, 3)
		d.put(0, "", "b", 4, 5)
		d.read()
		c := d.next(1)
		d.returned(d.next(4), dispatch.Unavailable)
		d.tick(time.Second)
		d.b.LanesLost(d.terms[0])
		d.after()
		d.none()
		d.returned(c, verdict)
		published, failed := d.b.Results(10)
		if len(failed) > 0 || (len(published) == 1) != (verdict == dispatch.OK) {
			t.Fatalf("verdict %d in a past assignment: %d published, %d failed", verdict, len(published), len(failed))
		}
		d.write(published, nil)
		if c := d.b.Counts(); c != (dispatch.Counts{}) {
			t.Fatalf("%+v", c)
		}
		d.take(0)
		d.read()
		d.now = d.now.Add(time.Minute)
		d.drain()
		if len(d.table) > 0 {
			t.Fatalf("%d left", len(d.table))
		}
	}
}

// A read that was in flight when a lane was lost and acquired again adds nothing to the new assignment.
func TestReadOfAnotherAssignment(t *testing.T) {
	d := newDesk(t, dispatch.Config{}, 0, 1)
	d.put(0, "", "a", 1)
	d.put(1, "", "a", 2)
	a := d.begin()
	r := d.answer(a)
	d.b.LanesLost(d.terms[0])
	d.after()
	d.take(0)
	d.finish(a, r)
	d.next(2)
	d.none()
	d.want(d.drain(), 1)
}

func TestLaneThatIsNotOursAnyMore(t *testing.T) {
	d := newDesk(t, dispatch.Config{}, 0, 1)
	d.put(0, "", "a", 1)
	d.read()
	d.put(1, "", "a", 2)
	a := d.begin()
	r := d.answer(a)
	r.Lanes = r.Lanes[1:]
	d.finish(a, r)
	d.next(2)
	d.none()
}

func TestStop(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "k", "a", 1, 2)
	d.put(0, "", "a", 3, 4)
	d.read()
	c := d.next(1)
	d.returned(d.next(3), dispatch.OK)
	d.b.Stop()
	d.after()
	d.none()
	d.take(1)
	if a := d.begin(); len(a.IDs) > 0 || a.Room.Rows > 0 {
		t.Fatalf("requested %+v", a)
	}
	d.returned(c, dispatch.OK)
	published, _ := d.b.Results(1)
	d.b.Settled(d.now, published, nil)
	if len(d.free) != 1 { // the new one
		t.Fatalf("free: %v", d.free)
	}
	published, failed := d.b.Results(10)
	d.b.Unsettled(published, failed)
	d.after()
	if len(d.free) != 2 || d.b.Counts() != (dispatch.Counts{}) {
		t.Fatalf("free: %v, %+v", d.free, d.b.Counts())
	}
}

func TestKnown(t *testing.T) {
	d := newDesk(t, dispatch.Config{KeyRows: 2})
	d.put(0, "k", "a", 1, 2, 3, 4, 100_000)
	d.read()
	for _, c := range []struct {
		mark       int64
		above, all int
	}{{100_000, 0, 5}, {0, 5, 5}, {50_000, 3, 5}} {
		if above, all := d.b.KnownRows(d.terms[0], c.mark); above != c.above || all != c.all {
			t.Fatalf("above %d: %d of %d", c.mark, above, all)
		}
	}
}

func TestRoom(t *testing.T) {
	d := newDesk(t, dispatch.Config{Rows: 10, Bytes: 100})
	d.put(0, "", "a", ids(1, 30)...)
	d.read()
	if c := d.b.Counts(); c.Rows != 10 || c.Bytes != 70 || d.b.HasRoom() {
		t.Fatalf("%+v", c)
	}
	for range 20 { // always a little room, but not without limit
		d.read()
	}
	if c := d.b.Counts(); c.Rows != 28 {
		t.Fatalf("%+v", c)
	}
	for range 22 {
		d.returned(d.next(), dispatch.OK)
		if d.last.Read {
			t.Fatal("a read although there is little room")
		}
	}
	d.settle()
	d.returned(d.next(), dispatch.OK)
	if !d.last.Read || !d.b.HasRoom() {
		t.Fatal("no further read")
	}
}
