package coordinator

import (
	"slices"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/cursor"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/lanes"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/lease"
)

// TestANewIncarnationTakesLanesAgain: everything in memory is discarded, and the rebalancer is woken.
func TestANewIncarnationTakesLanesAgain(t *testing.T) {
	d := drive(t)
	d.quiet()
	a := ReadAnswer{Answer: cursor.Answer{Incarnation: "another incarnation", Rewind: -1}}
	if !d.ReadAnswered(d.now, d.begin(), &a) {
		t.Fatal("the new incarnation is not noticed")
	}
	if e := d.Effects(d.now); e.Wake&WakeRebalancer == 0 || len(d.Assignments()) > 0 {
		t.Errorf("wake %b, lanes %v", e.Wake, d.Assignments())
	}
	if p := d.view("me"); len(p.Retake) != lanes.Count {
		t.Errorf("%d lanes must be acquired again", len(p.Retake))
	}
	if _, missing := d.Owned(); !missing {
		t.Error("no lane is missing")
	}
}

// TestLaneLoadedInAnotherAssignment: blocked rows loaded before a lane was lost are not used after it is acquired
// again.
func TestLaneLoadedInAnotherAssignment(t *testing.T) {
	d := drive(t)
	old, again := lanes.Assignment{Lane: 5, Epoch: 2}, lanes.Assignment{Lane: 5, Epoch: 3}
	d.Released([]lanes.Assignment{{Lane: 5, Epoch: 1}})
	d.Took([]lanes.Assignment{old})
	d.Released([]lanes.Assignment{old})
	d.Took([]lanes.Assignment{again})
	d.LaneLoaded(d.now, old, "life", dispatch.NewTakenLane(d.now, old, nil))
	if p := d.PlanRead(d.now, false); !slices.Equal(p.Load, []lanes.Assignment{again}) {
		t.Errorf("%+v", p)
	}
}

// TestALaneThatAReadFindsLost to another owner is forgotten.
func TestALaneThatAReadFindsLost(t *testing.T) {
	d := drive(t)
	req := d.begin()
	a := ReadAnswer{Answer: cursor.Answer{Incarnation: "life", Rewind: -1}}
	a.Owned[7] = true
	d.ReadAnswered(d.now, req, &a)
	d.ReadEnds(d.now, req, &a)
	if all := d.Assignments(); !slices.Equal(all, []lanes.Assignment{{Lane: 7, Epoch: 1}}) {
		t.Errorf("%v are still ours", all)
	}
}

// TestReleasedLanesAreNotFree: they are no longer reported.
func TestReleasedLanesAreNotFree(t *testing.T) {
	d := drive(t)
	d.Stop(d.now)
	d.Effects(d.now)
	d.Released(d.Free()[1:])
	if free := d.Free(); !slices.Equal(free, []lanes.Assignment{{Lane: 0, Epoch: 1}}) || len(d.Assignments()) != 1 {
		t.Errorf("%v are free, %v ours", free, d.Assignments())
	}
}

// TestScansContinueAfterAFullPage, and end at one that is not full.
func TestScansContinueAfterAFullPage(t *testing.T) {
	d := drive(t)
	d.end(d.begin(), &dispatch.Row{ID: 100, Topic: "orders"})
	term := lanes.Assignment{Lane: 3, Epoch: 1}
	at := d.NextSpans([]Position{{Assignment: term}, {Assignment: lanes.Assignment{Lane: 3, Epoch: 9}}}, 60)
	if len(at) != 1 || at[0].Upto != 60 {
		t.Fatalf("%+v", at)
	}
	d.Swept(at, map[int16][]dispatch.Orphan{3: {{ID: 5}, {ID: 6}}}, 2)
	if at[0].Cursor != 6 {
		t.Errorf("a full page ends at %d", at[0].Cursor)
	}
	d.Swept(at, map[int16][]dispatch.Orphan{3: {{ID: 7}}}, 2)
	if at[0].Cursor != 60 {
		t.Errorf("a page that is not full ends at %d", at[0].Cursor)
	}
	if at[0].Cursor = 100; len(d.NextSpans(at, 60)) > 0 {
		t.Error("a sweep goes beyond the cursor")
	}
	blocked := map[int16][]dispatch.BlockedRow{3: {{ID: 8, Key: "k"}, {ID: 9, Key: "k"}}}
	left := d.BlockedSeen(d.now, d.now, []Position{{Assignment: term}}, blocked, 2)
	if len(left) != 1 || left[0].Cursor != 9 {
		t.Errorf("%+v", left)
	}
	if left = d.BlockedSeen(d.now, d.now, left, nil, 2); len(left) > 0 {
		t.Errorf("%+v are left", left)
	}
}

// TestALaneThatIsHandedBackIsNotRead, neither a surplus lane nor any lane after a stop.
func TestALaneThatIsHandedBackIsNotRead(t *testing.T) {
	d := drive(t)
	var list []lease.Lane
	for _, term := range d.Assignments() {
		list = append(list, lease.Lane{Assignment: term, Owner: "me", Alive: true})
	}
	p := d.MembersRead([]lease.Member{{ID: "me", Left: time.Minute}, {ID: "you", Left: time.Minute}}, list, 0)
	req := d.begin()
	for _, term := range p.Release {
		if l := d.Lane(term.Lane); l.State != Releasing || req.Cursors.Epochs[term.Lane] != 0 {
			t.Errorf("lane %d is %+v, and read under epoch %d", term.Lane, l, req.Cursors.Epochs[term.Lane])
		}
	}
	if owned, missing := d.Owned(); len(p.Release) != lanes.Count/2 || owned != lanes.Count/2 || missing {
		t.Errorf("%d are released, %d owned, missing %v", len(p.Release), owned, missing)
	}
	d.ReadFailed(d.now, req, false, 0)
	d.Released([]lanes.Assignment{{Lane: 63, Epoch: 1}})
	if req = d.begin(); req.Cursors.Epochs[63] != 0 {
		t.Error("a lane without an owner is read")
	}
	d.ReadFailed(d.now, req, false, 0)
	d.Stop(d.now)
	if _, ok := d.ReadBegins(d.now, true); ok {
		t.Error("a read begins after the stop")
	}
}
