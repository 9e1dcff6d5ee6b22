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

// The schedules of package dispatch's model drive a Coordinator against a database. These tests cover the rest.

// driven is a Coordinator of a single forwarder, which owns all lanes.
type driven struct {
	*Coordinator
	t    *testing.T
	now  time.Time
	seq  int64
	took time.Duration // duration of each read
}

func drive(t *testing.T) *driven {
	cfg := Config{Me: "me", LeaseTTL: time.Minute, PollInterval: time.Second}
	m := New(cfg, dispatch.New(dispatch.Config{
		Concurrency: 2, Rows: 100, Backoff: func(int) time.Duration { return time.Minute },
	}), cursor.New())
	d := &driven{Coordinator: m, t: t, now: time.Unix(1e9, 0)}
	d.Renewed(d.now)
	d.Took(d.view("").Take)
	for _, term := range d.PlanRead(d.now, false).Load {
		d.LaneLoaded(d.now, term, "life", dispatch.NewTakenLane(d.now, term, nil))
	}
	d.Effects(d.now)
	return d
}

// view returns the database's state, with one owner of all lanes.
func (d *driven) view(owner string) lease.Plan {
	var list []lease.Lane
	for n := range int16(lanes.Count) {
		list = append(list, lease.Lane{Assignment: lanes.Assignment{Lane: n, Epoch: 1}, Owner: owner, Alive: owner != ""})
	}
	return d.MembersRead([]lease.Member{{ID: "me", Left: time.Minute}}, list, 0)
}

func (d *driven) begin() *ReadRequest {
	d.t.Helper()
	req, ok := d.ReadBegins(d.now, true)
	if !ok {
		d.t.Fatal("no read begins")
	}
	return &req
}

// end completes a read with rows.
func (d *driven) end(req *ReadRequest, rows ...*dispatch.Row) {
	d.t.Helper()
	d.endDue(req, nil, rows...)
}

// endDue completes a read with rows, and with others that are due.
func (d *driven) endDue(req *ReadRequest, due []*dispatch.Row, rows ...*dispatch.Row) {
	d.t.Helper()
	a := ReadAnswer{Answer: cursor.Answer{Incarnation: "life", Rewind: -1, Took: d.took}}
	for n := range a.Owned {
		a.Owned[n] = true
	}
	for _, r := range due {
		r.Assignment = lanes.Assignment{Lane: 3, Epoch: d.Lane(3).Epoch}
	}
	for _, r := range rows {
		r.Assignment = lanes.Assignment{Lane: 3, Epoch: d.Lane(3).Epoch}
		a.Counts[3], a.Last[3], d.seq = a.Counts[3]+1, r.ID, r.ID
	}
	a.Snapshot.Seq = d.seq
	a.Read.Ready, a.Read.Due, a.Read.DueRead = rows, due, req.Due
	if d.ReadAnswered(d.now, req, &a) {
		d.t.Fatal("a new life")
	}
	d.ReadEnds(d.now, req, &a)
}

func (d *driven) drained() (ids []int64) {
	for _, done := range d.Effects(d.now).Drained {
		ids = append(ids, done.ID)
	}
	return ids
}

// quiet reads until no rows are left.
func (d *driven) quiet() {
	for range 3 {
		d.end(d.begin())
	}
	d.Effects(d.now)
}

// TestDrainWaitsForARead: a drain needs a read that began after it, and the rows of that read.
func TestDrainWaitsForARead(t *testing.T) {
	d := drive(t)
	d.quiet()
	req := d.begin()
	id := d.DrainBegins(true)
	d.end(req)
	if ids := d.drained(); len(ids) > 0 {
		t.Fatalf("%v complete with a read that began before", ids)
	}
	d.end(d.begin(), &dispatch.Row{ID: 1, Topic: "orders"})
	if ids := d.drained(); len(ids) > 0 {
		t.Fatalf("%v complete while a row waits", ids)
	}
	call := d.Next(d.now, nil, dispatch.Result{}, nil, true)
	d.Next(d.now, call, dispatch.Result{}, nil, false)
	d.end(d.begin())
	if ids := d.drained(); len(ids) > 0 {
		t.Fatalf("%v complete while a result is not settled", ids)
	}
	published, _ := d.Results(10)
	d.Settled(d.now, published, nil)
	if e := d.Effects(d.now); e.Wake&WakeReader == 0 {
		t.Error("the reader is not woken once everything is settled")
	}
	if d.PlanRead(d.now, false).Wait > 0 {
		t.Error("no read follows once everything is settled")
	}
	for range 3 {
		d.end(d.begin())
		if ids := d.drained(); slices.Equal(ids, []int64{id}) {
			return
		}
	}
	t.Error("the drain does not complete")
}

// TestDrainNeedsAllLanes: a lane that has not been read is not drained.
func TestDrainNeedsAllLanes(t *testing.T) {
	d := drive(t)
	d.quiet()
	d.DrainBegins(true)
	d.Released([]lanes.Assignment{{Lane: 5, Epoch: 1}})
	d.quietButNot(t, "a lane is missing")
	d.Took([]lanes.Assignment{{Lane: 5, Epoch: 2}})
	d.quietButNot(t, "a lane is not loaded")
}

func (d *driven) quietButNot(t *testing.T, why string) {
	t.Helper()
	for range 3 {
		d.end(d.begin())
		if ids := d.drained(); len(ids) > 0 {
			t.Errorf("%v complete although %s", ids, why)
		}
	}
}

// TestDrainWaitsForASilentMember: it may be dead, and after its lease expires its lanes are ours to drain.
func TestDrainWaitsForASilentMember(t *testing.T) {
	d := drive(t)
	d.quiet()
	var theirs []lanes.Assignment
	var list []lease.Lane
	for n := range int16(lanes.Count) {
		l := lease.Lane{Assignment: lanes.Assignment{Lane: n, Epoch: 1}, Owner: "me", Alive: true}
		if n >= lanes.Count/2 {
			l.Owner = "you"
			theirs = append(theirs, l.Assignment)
		}
		list = append(list, l)
	}
	d.Released(theirs)
	view := func(silent bool) {
		d.MembersRead([]lease.Member{{ID: "me"}, {ID: "you", Silent: silent}}, list, 0)
	}
	view(true)
	d.DrainBegins(false)
	d.end(d.begin())
	if ids := d.drained(); len(ids) != 1 {
		t.Error("a drain of our own lanes waits for the others")
	}
	id := d.DrainBegins(true)
	d.quietButNot(t, "a member may be dead")
	view(false)
	if e := d.Effects(d.now); e.Wake&WakeReader == 0 || d.PlanRead(d.now, false).Wait > 0 {
		t.Error("the drain does not complete after the member has renewed its lease")
	}
	d.end(d.begin())
	if ids := d.drained(); !slices.Equal(ids, []int64{id}) {
		t.Errorf("%v complete, want %v", ids, id)
	}
}

// TestDrainWaitsForATopicThatWasLeftOut: a read left out the topic because an operator had paused it. The topic is
// resumed during the read, and its due rows have not been read.
func TestDrainWaitsForATopicThatWasLeftOut(t *testing.T) {
	d := drive(t)
	d.quiet()
	d.PauseByOperator(d.now, []string{"orders"})
	id := d.DrainBegins(true)
	req := d.begin()
	d.PauseByOperator(d.now, nil)
	d.end(req)
	d.drainedByTheNext(id)
}

// drainedByTheNext checks that the next read completes a drain, and none before.
func (d *driven) drainedByTheNext(id int64) {
	d.t.Helper()
	if ids := d.drained(); len(ids) > 0 {
		d.t.Errorf("%v complete with a read that has not seen all due rows", ids)
	}
	if d.PlanRead(d.now, false).Wait > 0 {
		d.t.Error("no further read begins")
	}
	d.end(d.begin())
	if ids := d.drained(); !slices.Equal(ids, []int64{id}) {
		d.t.Errorf("%v complete, want %v", ids, id)
	}
}

// TestDrainWaitsForWhatIsHidden: rows behind due messages that wait for the first of their key.
func TestDrainWaitsForWhatIsHidden(t *testing.T) {
	d := drive(t)
	term := lanes.Assignment{Lane: 3, Epoch: 2}
	d.Released([]lanes.Assignment{{Lane: 3, Epoch: 1}})
	d.Took([]lanes.Assignment{term})
	d.LaneLoaded(d.now, term, "life", dispatch.NewTakenLane(d.now, term, []dispatch.BlockedRow{
		{ID: 1, Key: "k", Topic: "orders", Wait: time.Hour}, {ID: 2, Key: "k", Topic: "orders"},
	}))
	d.quiet()
	id := d.DrainBegins(true)
	d.endDue(d.begin(), []*dispatch.Row{{ID: 2, Key: "k", Topic: "orders", Attempts: 1}})
	d.drainedByTheNext(id)
}

// TestStopAnswersDrains, pending and later ones.
func TestStopAnswersDrains(t *testing.T) {
	d := drive(t)
	first := d.DrainBegins(true)
	d.Stop(d.now)
	e := d.Effects(d.now)
	if len(e.Drained) != 1 || e.Drained[0].ID != first || !e.Drained[0].Closed {
		t.Errorf("%+v", e.Drained)
	}
	if e.Wake&WakeRebalancer == 0 || len(d.Free()) != lanes.Count {
		t.Errorf("%d lanes are free, wake %b", len(d.Free()), e.Wake)
	}
	if second := d.DrainBegins(true); !slices.Equal(d.drained(), []int64{second}) {
		t.Error("a drain after the stop does not complete")
	}
}

// TestNoWorkerStartsWithoutALease, and running ones end.
func TestNoWorkerStartsWithoutALease(t *testing.T) {
	d := drive(t)
	d.end(d.begin(), &dispatch.Row{ID: 1, Topic: "orders"}, &dispatch.Row{ID: 2, Topic: "orders"})
	d.now = d.now.Add(time.Minute)
	if n := d.Effects(d.now).Start; n != 0 {
		t.Errorf("%d workers are to start at the end of the lease", n)
	}
	d.Renewed(d.now.Add(-time.Second))
	if n := d.Effects(d.now).Start; n != 2 {
		t.Errorf("%d workers are to start under a new lease, not 2", n)
	}
	if n := d.Effects(d.now).Start; n != 0 {
		t.Errorf("%d more are to start", n)
	}
	d.now = d.now.Add(59 * time.Second)
	for range 2 {
		if d.Next(d.now, nil, dispatch.Result{}, nil, true) != nil {
			t.Error("a call starts at the end of the lease")
		}
	}
	d.Renewed(d.now)
	if n := d.Effects(d.now).Start; n != 2 {
		t.Errorf("%d workers are to start after those that found no lease, not 2", n)
	}
}

// TestPauseAfterAFailedRead: neither acquired lanes nor commits shorten it.
func TestPauseAfterAFailedRead(t *testing.T) {
	d := drive(t)
	d.ReadFailed(d.now, d.begin(), true, time.Second)
	d.Released([]lanes.Assignment{{Lane: 5, Epoch: 1}})
	d.Took([]lanes.Assignment{{Lane: 5, Epoch: 2}})
	if p := d.PlanRead(d.now, true); p.Wait != time.Second || len(p.Load) > 0 {
		t.Errorf("%+v", p)
	}
	if m := d.Health(d.now.Add(time.Second)); m.Failing != time.Second || m.Quiet != 0 || m.Reading != 0 {
		t.Errorf("%+v", m)
	}
	d.now = d.now.Add(time.Second)
	if p := d.PlanRead(d.now, false); p.Wait > 0 || len(p.Load) != 1 {
		t.Errorf("%+v", p)
	}
}

// TestWhatFallsDueDoesNotWakeAReaderThatPauses: otherwise the reader would poll, wait, and be woken by the same row
// again and again.
func TestWhatFallsDueDoesNotWakeAReaderThatPauses(t *testing.T) {
	d := drive(t)
	failed := d.fail()
	d.Settled(d.now, nil, []dispatch.Outcome{{Failure: failed, Kind: dispatch.Waiting}})
	d.now = d.now.Add(time.Hour) // the message is due
	d.ReadFailed(d.now, d.begin(), true, time.Second)
	d.PlanRead(d.now, false)
	if _, due := d.dispatcher.NextTimes(); due.IsZero() || due.After(d.now) {
		t.Fatalf("nothing is due: %s", due)
	}
	if d.Effects(d.now).Wake&WakeReader != 0 {
		t.Error("the reader is woken")
	}
	d.now = d.now.Add(time.Second)
	if p := d.PlanRead(d.now, false); p.Wait > 0 {
		t.Errorf("after the pause the reader waits for %s", p.Wait)
	}
}

// TestMuchThatFellDueDelaysNoPoll: the next read of due rows is delayed in proportion to a slow one, but new rows are
// still read at the usual interval.
func TestMuchThatFellDueDelaysNoPoll(t *testing.T) {
	d := drive(t)
	d.quiet()
	d.took, d.now = 10*time.Second, d.now.Add(2*time.Second)
	req := d.begin()
	var due []*dispatch.Row
	for id := range req.Dispatch.Due[3] {
		due = append(due, &dispatch.Row{ID: id + 1, Topic: "orders", Attempts: 1})
	}
	d.endDue(req, due)
	for range 2 { // the second read leaves out due rows, and delays nothing either
		if wait := d.PlanRead(d.now, false).Wait; wait != time.Second {
			t.Fatalf("the next read is in %s, want the interval of a second", wait)
		}
		d.now = d.now.Add(time.Second)
		if req = d.begin(); req.Due {
			t.Fatal("the reader reads due rows too early")
		}
		d.end(req)
	}
	d.now = d.now.Add(17500 * time.Millisecond)
	d.end(d.begin())
	if wait := d.PlanRead(d.now, false).Wait; wait != 500*time.Millisecond {
		t.Fatalf("the next poll of due rows is in %s, want it at the due time", wait)
	}
}

// TestACommitIsReadOnce: a commit during a rest is read once, and a commit during a read by the next read.
func TestACommitIsReadOnce(t *testing.T) {
	d := drive(t)
	d.quiet()
	if p := d.PlanRead(d.now, true); p.Wait > 0 {
		t.Errorf("a commit waits for %s", p.Wait)
	}
	req := d.begin()
	d.end(req)
	if p := d.PlanRead(d.now, false); p.Wait == 0 {
		t.Error("the commit is read twice")
	}
	req = d.begin()
	d.PlanRead(d.now, true)
	d.end(req)
	if p := d.PlanRead(d.now, false); p.Wait > 0 {
		t.Error("rows committed during the read wait")
	}
}

// fail lets a row fail, and returns the failure to settle.
func (d *driven) fail() dispatch.Failure {
	d.t.Helper()
	d.end(d.begin(), &dispatch.Row{ID: 1, Key: "k", Topic: "orders"})
	call := d.Next(d.now, nil, dispatch.Result{}, nil, true)
	d.Next(d.now, call, dispatch.Result{Verdict: dispatch.Retry}, nil, false)
	_, failed := d.Results(10)
	if len(failed) != 1 {
		d.t.Fatalf("%d failures", len(failed))
	}
	return failed[0]
}

// TestAFencedFailureEndsItsAssignment, unless we own the lane again with a higher epoch.
func TestAFencedFailureEndsItsAssignment(t *testing.T) {
	for _, again := range []bool{false, true} {
		d := drive(t)
		failed := d.fail()
		if again {
			d.Released([]lanes.Assignment{failed.Row.Assignment})
			d.Took([]lanes.Assignment{{Lane: 3, Epoch: 2}})
		}
		d.Effects(d.now)
		d.Settled(d.now, nil, []dispatch.Outcome{{Failure: failed, Kind: dispatch.Fenced}})
		if woken := d.Effects(d.now).Wake&WakeRebalancer != 0; woken == again || (d.Lane(3).Epoch != 0) != again {
			t.Errorf("with the lane again %v: the rebalancer is woken: %v, the lane is %+v", again, woken, d.Lane(3))
		}
	}
}

// TestDrainNamesTheTopicOfDueMessages that no read has returned, because reads leave out topics that an operator has
// paused.
func TestDrainNamesTheTopicOfDueMessages(t *testing.T) {
	d := drive(t)
	d.quiet()
	d.PauseByOperator(d.now, []string{"orders"})
	d.quiet()
	d.DrainBegins(true)
	d.drainNames("orders")
}

// drainNames reads until a drain is complete, which names these paused topics. The first has a due message.
func (d *driven) drainNames(topics ...string) {
	d.t.Helper()
	for range 3 {
		req := d.begin()
		var due []*dispatch.Row
		if req.Due && !slices.Contains(req.Dispatch.Closed, topics[0]) {
			due = append(due, &dispatch.Row{ID: 1000, Topic: topics[0]})
		}
		d.endDue(req, due)
		for _, done := range d.Effects(d.now).Drained {
			if slices.Sort(done.Paused); !slices.Equal(done.Paused, topics) {
				d.t.Errorf("it names %q", done.Paused)
			}
			return
		}
	}
	d.t.Error("it does not complete")
}

// TestDrainNamesTheTopicOfMessagesDueDuringARead that had begun before the drain.
func TestDrainNamesTheTopicOfMessagesDueDuringARead(t *testing.T) {
	d := drive(t)
	d.PauseByOperator(d.now, []string{"orders"})
	d.quiet()
	d.now = d.now.Add(2 * time.Second)
	req := d.begin()
	d.DrainBegins(true)
	d.end(req)
	d.drainNames("orders")
}

// TestReadWithoutRoomReadsNoDueRows: it would find none, and a drain would rely on that.
func TestReadWithoutRoomReadsNoDueRows(t *testing.T) {
	d := drive(t)
	d.quiet()
	d.PauseByOperator(d.now, []string{"orders"})
	d.quiet()
	var rows []*dispatch.Row
	for id := range int64(208) {
		rows = append(rows, &dispatch.Row{ID: id + 1, Topic: "others"})
	}
	d.now = d.now.Add(2 * time.Second)
	d.end(d.begin(), rows...)
	d.DrainBegins(true)
	d.now = d.now.Add(2 * time.Second)
	req := d.begin()
	if req.Due {
		t.Error("it reads due rows without room for them")
	}
	if d.end(req); d.PlanRead(d.now, false).Wait != time.Second {
		t.Error("the next read begins before the next poll, without room")
	}
	d.PauseByOperator(d.now, []string{"orders", "others"})
	d.Tick(d.now) // defers what is in memory
	d.drainNames("orders", "others")
}
