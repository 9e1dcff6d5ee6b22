package dispatch_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

var errBroker = errors.New("no answer")

// desk is a dispatcher with a table in which every write commits immediately. Its reads return all rows past a cursor
// that fit. Each event is followed by a recount.
type desk struct {
	t       testing.TB
	b       *dispatch.Dispatcher
	now     time.Time
	table   map[int64]*message
	marks   map[int16]int64
	terms   map[int16]dispatch.Assignment
	calls   []*dispatch.Call
	sent    []int64
	reports []dispatch.Report
	free    []dispatch.Assignment
	recall  []*dispatch.Call
	expired []*dispatch.Call
	last    dispatch.Effects
	check   bool

	rarely    bool            // due rows are read only if the dispatcher wants them
	acts      int             // number of operators' acts
	unsettled []*dispatch.Row // published, and held by the settler
	hung      []*dispatch.Call
}

type message struct {
	id         int64
	lane       int16
	key, topic string
	attempts   int
	untried    bool // since it was requeued
	due        time.Time
	dead       bool
	act        string // the operator's act that requeued it
}

func newDesk(t testing.TB, cfg dispatch.Config, lanes ...int16) *desk {
	if cfg.Concurrency == 0 {
		cfg.Concurrency = 4
	}
	if cfg.Rows == 0 {
		cfg.Rows = 1000
	}
	cfg.Backoff = func(n int) time.Duration { return time.Duration(n) * time.Second }
	cfg.OutageBackoff = cfg.Backoff
	d := &desk{
		t: t, b: dispatch.New(cfg), now: time.Unix(1e9, 0), table: map[int64]*message{}, marks: map[int16]int64{},
		terms: map[int16]dispatch.Assignment{}, check: true,
	}
	if len(lanes) == 0 {
		lanes = []int16{0}
	}
	for _, lane := range lanes {
		d.take(lane)
	}
	return d
}

// take acquires a lane again, with its blocked rows.
func (d *desk) take(lane int16) {
	t := dispatch.Assignment{Lane: lane, Epoch: d.terms[lane].Epoch + 1}
	d.terms[lane], d.marks[lane] = t, 0
	d.b.LaneTaken(d.now, dispatch.NewTakenLane(d.now, t, d.blocked(lane)))
	d.after()
}

func (d *desk) blocked(lane int16) (blocked []dispatch.BlockedRow) {
	for _, id := range slices.Sorted(maps.Keys(d.table)) {
		if m := d.table[id]; m.lane == lane && m.key != "" && m.attempts > 0 {
			blocked = append(blocked, dispatch.BlockedRow{
				ID: id, Key: m.key, Topic: m.topic, Wait: max(0, m.due.Sub(d.now)), Dead: m.dead,
			})
		}
	}
	return blocked
}

func (d *desk) put(lane int16, key, topic string, ids ...int64) {
	for _, id := range ids {
		d.table[id] = &message{id: id, lane: lane, key: key, topic: topic}
	}
}

// after handles the effects of an event, and recounts.
func (d *desk) after() {
	d.t.Helper()
	d.last = d.b.Effects()
	d.reports = append(d.reports, d.last.Reports...)
	d.free = append(d.free, d.last.Free...)
	d.recall = append(d.recall, d.last.Recall...)
	d.expired = append(d.expired, d.last.Expired...)
	if d.check {
		if problem := d.b.Check(d.calls); problem != "" {
			d.t.Fatal(problem)
		}
	}
}

func (d *desk) row(m *message) *dispatch.Row {
	return &dispatch.Row{
		ID: m.id, Assignment: d.terms[m.lane], Key: m.key, UUID: fmt.Sprint(m.id), Topic: m.topic, Payload: []byte("payload"),
		Attempts: m.attempts, Untried: m.untried, Generation: m.act,
	}
}

func (d *desk) begin() dispatch.Request {
	d.t.Helper()
	a := d.b.ReadBegins(d.now)
	for lane, mark := range d.marks {
		a.CatchUp.Upto[lane] = mark
	}
	d.after()
	return a
}

func (d *desk) answer(a dispatch.Request) dispatch.Read {
	r := dispatch.Read{ByID: map[int64]dispatch.Found{}, DueRead: !d.rarely || a.WantDue}
	room := a.Room.Rows
	ids := slices.Sorted(maps.Keys(d.table))
	lanes := slices.Sorted(maps.Keys(d.terms))
	c := &a.CatchUp
	for _, lane := range lanes {
		left := c.Limits[lane]
		for _, id := range ids {
			m := d.table[id]
			if m.lane == lane && !m.dead && m.due.IsZero() && id >= c.From[lane] && id <= c.Upto[lane] && left > 0 &&
				(c.All>>lane&1 != 0 || slices.Contains(c.Keys, m.key)) {
				left--
				r.Caught = append(r.Caught, d.row(m))
			}
		}
		known, _ := d.b.KnownRows(d.terms[lane], d.marks[lane])
		limit := 0
		if room > 0 {
			limit = max(1, room/len(lanes)) + known
		}
		var fellDue []*message
		for _, id := range ids {
			m := d.table[id]
			switch {
			case m.lane != lane || m.dead:
			case !m.due.IsZero():
				if r.DueRead && !m.due.After(d.now) && (m.attempts > 0 && m.key != "" ||
					!slices.Contains(a.Closed, m.topic) && !slices.Contains(a.Blocked, m.key)) {
					fellDue = append(fellDue, m)
				}
			case id > d.marks[lane] && limit > 0:
				limit--
				r.Ready = append(r.Ready, d.row(m))
				d.marks[lane] = id
			}
		}
		if limit > 0 && len(ids) > 0 { // everything was read
			d.marks[lane] = max(d.marks[lane], ids[len(ids)-1])
		}
		slices.SortStableFunc(fellDue, func(x, y *message) int { return x.due.Compare(y.due) })
		for _, m := range fellDue[:min(len(fellDue), int(a.Due[lane]))] {
			r.Due = append(r.Due, d.row(m))
		}
		r.Lanes = append(r.Lanes, dispatch.LaneRead{Assignment: d.terms[lane], Cursor: d.marks[lane]})
	}
	for _, id := range a.IDs {
		if m := d.table[id]; m != nil {
			r.ByID[id] = dispatch.Found{Row: d.row(m), Dead: m.dead}
		}
	}
	slices.SortFunc(r.Ready, func(x, y *dispatch.Row) int {
		return cmp.Or(cmp.Compare(x.Assignment.Lane, y.Assignment.Lane), cmp.Compare(x.ID, y.ID))
	})
	return r
}

func (d *desk) read() dispatch.Progress {
	d.t.Helper()
	a := d.begin()
	return d.finish(a, d.answer(a))
}

func (d *desk) finish(a dispatch.Request, r dispatch.Read) dispatch.Progress {
	d.t.Helper()
	p := d.b.RowsRead(d.now, a, r)
	d.after()
	return p
}

// next starts a call, for the given row if any.
func (d *desk) next(id ...int64) *dispatch.Call {
	d.t.Helper()
	c := d.b.Next(d.now, nil)
	if c != nil {
		d.calls = append(d.calls, c)
	}
	d.after()
	switch {
	case len(id) == 0:
	case c == nil:
		d.t.Fatalf("nothing may be published; want row %d", id[0])
	case c.Row.ID != id[0]:
		d.t.Fatalf("row %d is published, want %d", c.Row.ID, id[0])
	}
	return c
}

func (d *desk) none() {
	d.t.Helper()
	if c := d.next(); c != nil {
		d.t.Fatalf("row %d is published", c.Row.ID)
	}
}

func (d *desk) returned(c *dispatch.Call, v dispatch.Verdict) {
	d.t.Helper()
	d.answered(c, result(v))
}

func (d *desk) answered(c *dispatch.Call, r dispatch.Result) {
	d.t.Helper()
	if i := slices.Index(d.calls, c); i >= 0 {
		d.calls = slices.Delete(d.calls, i, i+1)
	}
	if r.Verdict == dispatch.OK {
		d.sent = append(d.sent, c.Row.ID)
	}
	d.b.Returned(d.now, c, r)
	d.after()
}

func result(v dispatch.Verdict) dispatch.Result {
	if v == dispatch.OK {
		return dispatch.Result{}
	}
	return dispatch.Result{Verdict: v, Err: errBroker}
}

// timesOut times out all calls that are old enough.
func (d *desk) timesOut(v dispatch.Verdict) {
	d.t.Helper()
	d.b.Tick(d.now)
	d.after()
	for _, c := range d.expired {
		d.b.TimedOut(d.now, c, result(v))
		d.after()
	}
	d.expired = nil
}

func (d *desk) tick(after time.Duration) {
	d.t.Helper()
	d.now = d.now.Add(after)
	d.b.Tick(d.now)
	d.after()
}

// pause sets the topics that an operator has paused.
func (d *desk) pause(topics ...string) {
	d.t.Helper()
	d.b.PauseByOperator(d.now, topics)
	d.after()
}

// settle writes results to the table.
func (d *desk) settle() {
	d.t.Helper()
	published, failed := d.b.Results(1000)
	d.write(published, failed)
}

func (d *desk) write(published []*dispatch.Row, failed []dispatch.Failure) {
	d.t.Helper()
	for _, r := range published {
		if m := d.table[r.ID]; m != nil && m.act == r.Generation { // otherwise requeued since
			delete(d.table, r.ID)
		}
	}
	var outcomes []dispatch.Outcome
	for _, f := range failed {
		o := dispatch.Outcome{Failure: f}
		switch m := d.table[f.Row.ID]; {
		case d.terms[f.Row.Assignment.Lane] != f.Row.Assignment:
			o.Kind = dispatch.Fenced
		case m == nil || m.dead:
			o.Kind = dispatch.Gone
		case m.act != f.Row.Generation: // requeued since, and waits for that
		case f.Permanent:
			m.attempts, m.untried, m.dead, o.Kind = f.Attempts, false, true, dispatch.Dead
		default:
			m.attempts, m.untried, m.due = f.Attempts, false, d.now.Add(f.Delay)
		}
		outcomes = append(outcomes, o)
	}
	d.b.Settled(d.now, published, outcomes)
	d.after()
}

// drain publishes and reads until no work is left, and returns the published ids.
func (d *desk) drain() []int64 {
	d.t.Helper()
	d.sent = nil
	for {
		before := len(d.sent)
		d.read()
		for c := d.next(); c != nil; c = d.next() {
			d.returned(c, dispatch.OK)
		}
		d.settle()
		if tick, _ := d.b.NextTimes(); !tick.IsZero() && !tick.After(d.now) {
			d.tick(0)
		}
		if len(d.sent) == before && !d.read().More && d.last.Publish == 0 {
			return d.sent
		}
	}
}

func (d *desk) want(got []int64, want ...int64) {
	d.t.Helper()
	if !slices.Equal(got, want) {
		d.t.Fatalf("published %v, want %v", got, want)
	}
}

// told checks the reports so far, and clears them.
func (d *desk) told(want ...dispatch.ReportKind) {
	d.t.Helper()
	var got []dispatch.ReportKind
	for _, r := range d.reports {
		got = append(got, r.Kind)
	}
	if !slices.Equal(got, want) {
		d.t.Fatalf("reports %+v, want kinds %v", d.reports, want)
	}
	d.reports = nil
}

// TestNotQuietWhileARetryIsDue: a read that began before a blocked row was published did not request the next row of
// its key.
func TestNotQuietWhileARetryIsDue(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "k", "a", 1, 2)
	for _, m := range d.table {
		m.attempts, m.due, m.act = 1, d.now, "1"
	}
	d.take(0)
	d.read()
	d.tick(50 * time.Millisecond) // the lane has been read
	d.read()
	c := d.next(1)
	a := d.begin()
	r := d.answer(a)
	d.returned(c, dispatch.OK)
	d.settle()
	d.finish(a, r)
	if d.b.Quiet() {
		t.Fatal("it is quiet while row 2 is due")
	}
	d.want(d.drain(), 2)
	if !d.b.Quiet() {
		t.Fatal("it is not quiet although nothing is left")
	}
}

func ids(from, to int64) (list []int64) {
	for id := from; id <= to; id++ {
		list = append(list, id)
	}
	return list
}

// orphans returns the rows that a sweep finds.
func orphans(ids ...int64) (rows []dispatch.Orphan) {
	for _, id := range ids {
		rows = append(rows, dispatch.Orphan{ID: id, Topic: "a"})
	}
	return rows
}
