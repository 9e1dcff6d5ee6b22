package board_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/lease"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/window"
)

// forwarder is one process: the real window, board and lease plan, driven as the engine drives them, but each
// goroutine of the engine is a method here that makes one step, and the model decides whose turn it is.
type forwarder struct {
	m      *model
	id     int
	board  *board.Board
	window *window.Window

	settle, read bool // the board woke the settler, the reader
	launched     int  // workers that have not made their first step
	held         map[int16]*heldLane
	calls        []*call

	reading    *reading
	late       *reading // one more, where reads overlap by mistake
	loading    *loading
	toLoad     map[int16]int64 // taken, but their heads are not loaded
	settling   *settling
	left       settling // results that were taken and not settled yet
	keeping    *keeping
	checking   *checking
	sweeping   map[int16]int64 // cursors
	lastFailed *board.Row
	paused     []string        // topics, as the board was told
	writers    map[uint32]bool // found out before the read, if they were looked for
	lastSeq    int64           // of the last read

	more        bool // there is more to read
	dirty       bool // there was a commit since the last read began
	duePoll     time.Time
	frozen      time.Time // it does nothing until then
	frozenWhile func() bool
	noReadWhile func() bool
	leaseUntil  time.Time
	short       int
	stopping    bool
	retake      bool // a new life: nothing is read before the lanes are retaken

	headsBefore map[int16][]board.Head // as of when the keeper looked

	told      map[*board.Row]*telling // what each row's call came to
	success   map[rowOf]bool          // told, in this term
	unsettled map[*board.Row]bool     // of those
}

type rowOf struct {
	term board.Term
	uuid string
}

// telling is what the board was told of a row's call, and what came of it.
type telling struct {
	ok, failed           bool
	okTaken, failedTaken bool // by the settler
	failedAt             int  // clock, when the failure was settled
}

type heldLane struct {
	epoch   int64
	handing bool
	free    bool // the board says so
}

// call is a Publish under way.
type call struct {
	*board.Call
	msg      *record
	landed   bool
	expired  bool // the board asked for its end, and was not told yet
	timedOut bool // the board was told
	recalled bool // the board wants it back
}

type reading struct {
	asks   board.Asks
	req    window.Request
	due    bool
	began  int // clock
	answer *answer
}

type loading struct {
	lane  int16
	epoch int64
	from  int64
	heads []board.Head
}

type settling struct {
	published []*board.Row
	failed    []board.Failure
	committed bool
	outcomes  []string
	locked    []settled
}

type keeping struct {
	plan  lease.Plan
	taken []lease.Term
	done  bool
}

type checking struct {
	began time.Time
	term  board.Term
	from  int64
	to    int64
	heads []board.Head
}

var (
	errRejected    = errors.New("rejected")
	errUnavailable = errors.New("unavailable")
	errTimeout     = errors.New("timed out")
)

func newForwarder(m *model) *forwarder {
	m.forwarderIDs++
	f := &forwarder{m: m, id: m.forwarderIDs, board: board.New(m.cfg), window: window.New(),
		held: map[int16]*heldLane{}, toLoad: map[int16]int64{}, sweeping: map[int16]int64{},
		told: map[*board.Row]*telling{}, success: map[rowOf]bool{}, unsettled: map[*board.Row]bool{}}
	f.board.ShadowBits(m.shadowWords)
	return f
}

func (f *forwarder) logf(format string, args ...any) {
	if f.m.logging {
		f.m.logf("forwarder %d "+format, append([]any{f.id}, args...)...)
	}
}

// take collects the effects of an event.
func (f *forwarder) take() {
	e := f.board.Effects()
	f.launched = max(f.launched, e.Publish)
	f.settle = f.settle || e.Settle
	f.read = f.read || e.Read
	for _, t := range e.Free {
		f.isFree(t)
	}
	for _, c := range e.Recall {
		if o := f.callOf(c); o != nil {
			f.logf("is to recall %d", c.Row.ID)
			o.recalled = true
		}
	}
	for _, c := range e.Expired {
		if o := f.callOf(c); o != nil {
			o.expired = true
		}
	}
	for _, r := range e.Reports {
		f.logf("reports %+v", r)
		if r.Kind == board.StrayFound && !f.m.operators {
			f.m.failf("forwarder %d: the sweep found row %d, which nobody knew of", f.id, r.ID)
		}
	}
}

func (f *forwarder) callOf(c *board.Call) *call {
	for _, o := range f.calls {
		if o.Call == c {
			return o
		}
	}
	f.m.failf("forwarder %d: an effect names row %d, which is not under way", f.id, c.Row.ID)
	return nil
}

// isFree checks that nothing of a lane that may be given back is under way.
func (f *forwarder) isFree(t board.Term) {
	f.logf("may give back lane %d, epoch %d", t.Lane, t.Epoch)
	h := f.held[t.Lane]
	if h == nil || h.epoch != t.Epoch {
		return // it is over: the answer that made it free said that as well
	}
	if !h.handing || h.free {
		f.m.failf("forwarder %d: lane %d of epoch %d is called free, which is not being handed back", f.id, t.Lane, t.Epoch)
		return
	}
	h.free = true
	for _, c := range f.calls {
		if c.Row.Term == t && !c.timedOut {
			f.m.failf("forwarder %d: lane %d is called free while row %d is under way", f.id, t.Lane, c.Row.ID)
		}
	}
	for _, r := range f.left.published {
		if r.Term == t {
			f.m.failf("forwarder %d: lane %d is called free while the success of row %d is unsettled", f.id, t.Lane, r.ID)
		}
	}
	for _, r := range f.left.failed {
		if r.Row.Term == t {
			f.m.failf("forwarder %d: lane %d is called free while the failure of row %d is unsettled", f.id, t.Lane, r.Row.ID)
		}
	}
	for r, told := range f.told {
		if r.Term == t && (told.ok && !told.okTaken) {
			f.m.failf("forwarder %d: lane %d is called free while nobody took the success of row %d", f.id, t.Lane, r.ID)
		}
	}
}

// reader makes a step of the reading goroutine.
func (f *forwarder) reader() {
	switch r := f.reading; {
	case f.m.variant.otherEpoch && r != nil && f.loading == nil && len(f.toLoad) > 0:
		f.beginLoad()
	case f.m.variant.otherEpoch && f.loading != nil:
		f.loadPage()
	case f.late != nil && f.m.chance(50):
		r, f.late = f.late, nil
		f.endRead(r)
	case r != nil && r.answer == nil:
		f.evaluate(r)
	case r != nil && f.m.variant.readsOverlap && f.late == nil:
		f.late, f.reading = r, nil
	case r != nil:
		f.reading = nil
		f.endRead(r)
	case f.loading != nil:
		f.loadPage()
	case f.stopping:
	case len(f.toLoad) > 0:
		f.beginLoad()
	case !f.retake && len(f.held) > 0 && f.wantsRead():
		f.beginRead()
	}
}

// wantsRead says whether the engine would read now.
func (f *forwarder) wantsRead() bool {
	if f.noReadWhile != nil && f.noReadWhile() {
		return false
	}
	_, due := f.board.Due()
	return !f.m.tight || f.read || f.dirty || f.more && f.board.HasRoom() || !due.IsZero() && !due.After(f.m.db.now) || !f.duePoll.After(f.m.db.now)
}

// beginLoad starts to load the heads of a lane that was taken.
func (f *forwarder) beginLoad() {
	for n := range int16(laneCount) {
		epoch, ok := f.toLoad[n]
		switch {
		case !ok:
		case !slices.Contains(f.m.lanes, n):
			delete(f.toLoad, n)
			f.laneTaken(board.Term{Lane: n, Epoch: epoch}, nil)
		default:
			f.loading = &loading{lane: n, epoch: epoch}
			f.loadPage()
			return
		}
	}
}

func (f *forwarder) loadPage() {
	l := f.loading
	page := 1 + f.m.rng.IntN(5)
	list := f.m.db.heads(l.lane, l.from, page)
	if f.m.variant.headsNotLoaded {
		list = nil
	}
	for _, v := range list {
		l.heads = append(l.heads, f.m.head(v))
		l.from = v.id
	}
	if len(list) == page {
		return
	}
	f.loading = nil
	if f.toLoad[l.lane] != l.epoch {
		return // lost meanwhile
	}
	delete(f.toLoad, l.lane)
	if f.m.variant.headsBeforeTake {
		l.heads = f.headsBefore[l.lane]
	}
	f.laneTaken(board.Term{Lane: l.lane, Epoch: l.epoch}, l.heads)
}

func (f *forwarder) laneTaken(t board.Term, heads []board.Head) {
	f.held[t.Lane] = &heldLane{epoch: t.Epoch}
	if !slices.Contains(f.m.lanes, t.Lane) {
		return // the board hears only of lanes that messages are in, as there are 64 of them
	}
	f.logf("starts lane %d, epoch %d, heads %v", t.Lane, t.Epoch, heads)
	f.window.Take(t.Lane, t.Epoch)
	f.board.LaneTaken(f.m.db.now, t, heads)
	f.more = true
	f.take()
}

func (f *forwarder) beginRead() {
	f.writers = nil
	if f.m.chance(30) {
		f.writers = f.m.db.writers()
		f.window.Raise(f.writers)
		f.m.others(30)
	}
	if f.m.variant.shadowsTooHigh {
		f.board.RaiseShadows()
	}
	r := &reading{began: f.m.db.tick(), due: !f.duePoll.After(f.m.db.now) || f.m.chance(20)}
	if r.due {
		f.duePoll = f.m.db.now.Add(5 * time.Millisecond)
	}
	r.asks = f.board.ReadBegins(f.m.db.now)
	if v := f.m.variant; v.unparksFromTheTop || v.triesFromTheTop {
		f.board.AskFromTheTop(&r.asks, v.triesFromTheTop)
	}
	f.take()
	for _, mark := range r.asks.Rewinds {
		f.logf("rewinds lane %d to %d", mark.Term.Lane, mark.To)
		if _, epoch := f.window.Mark(mark.Term.Lane); epoch == mark.Term.Epoch && !f.m.variant.noRewind {
			f.window.Rewind(mark.Term.Lane, mark.To)
		}
	}
	room := window.Room{Rows: r.asks.Room.Rows, Bytes: r.asks.Room.Bytes}
	r.req = f.window.Next(room, func(lane int16, mark int64) (int, int) {
		return f.board.Known(f.term(lane), mark)
	})
	r.req.Stretch = min(r.req.Stretch, f.m.stretch())
	f.reading, f.dirty, f.read, f.more = r, false, false, false
	f.logf("begins a read: marks %v, limits %v, stretch %d, ids %v", f.used(f.mark), f.used(func(n int16) int64 { return r.req.Limits[n] }), r.req.Stretch, r.asks.IDs)
}

// used leaves out the lanes that no message is in.
func (f *forwarder) used(list func(lane int16) int64) []int64 {
	if !f.m.logging {
		return nil
	}
	of := make([]int64, len(f.m.lanes))
	for i, n := range f.m.lanes {
		of[i] = list(n)
	}
	return of
}

func (f *forwarder) term(lane int16) board.Term {
	if h := f.held[lane]; h != nil {
		return board.Term{Lane: lane, Epoch: h.epoch}
	}
	return board.Term{Lane: lane}
}

// evaluate is the moment of the read's snapshot.
func (f *forwarder) evaluate(r *reading) {
	if f.m.chance(f.m.readFails) {
		f.readFailed(r)
		return
	}
	q := query{owner: f.id, xids: r.req.Xids, bounds: r.req.Bounds, los: r.req.Los, segmentBounds: r.req.SegmentBounds,
		stretch: r.req.Stretch, ids: r.asks.IDs, due: r.due, single: r.req.Single}
	if f.m.leavesOut {
		q.closed = r.asks.Closed
	}
	for n, epoch := range r.req.Epochs {
		if epoch == 0 {
			continue
		}
		l := laneQuery{lane: int16(n), epoch: epoch, mark: r.req.Marks[n], rows: r.req.Limits[n], rewound: r.req.Rewound[n], due: int64(r.asks.Due[n])}
		q.lanes = append(q.lanes, l)
	}
	f.m.variant.spoilQuery(f, &q)
	a := f.m.db.fetch(q, func() { f.m.others(30) })
	f.lastSeq = a.seq
	r.answer = &a
	f.logf("reads: snapshot %d:%v next %d seq %d rewind %d, ready %v, by id %v, due %v", a.xmax, a.running, a.nextXid, a.seq, a.rewind,
		idsOf(a.ready), idsOf(a.byID), idsOf(a.due))
}

func idsOf(list []version) []int64 {
	of := make([]int64, len(list))
	for i, v := range list {
		of[i] = v.id
	}
	return of
}

func (f *forwarder) readFailed(r *reading) {
	f.logf("fails to read")
	f.reading, f.more = nil, true
	f.window.Failed(r.req, f.m.chance(50))
	f.board.ReadFailed(f.m.db.now, r.asks)
	f.take()
}

func (f *forwarder) endRead(r *reading) {
	a := r.answer
	if f.m.chance(f.m.readFails) {
		f.readFailed(r)
		return
	}
	answer := window.Answer{
		Life:     a.life,
		Snapshot: window.Snapshot{Xmax: a.xmax, InProgress: a.running, NextXid: a.nextXid, Seq: a.seq},
		Rewind:   a.rewind, Rows: len(a.ready) + len(a.byID) + len(a.due), Took: time.Duration(f.m.rng.IntN(100)) * time.Millisecond,
	}
	for n := range a.owned {
		answer.Owned[n] = true
	}
	for _, v := range a.ready {
		answer.Counts[v.lane]++
		answer.Last[v.lane] = v.id
	}
	f.m.variant.spoilAnswer(f, r, &answer)
	p := f.window.Complete(r.req, answer)
	if p.Life == window.Changed {
		f.newLife(r)
		return
	}
	f.logf("ends the read: marks %v", f.used(f.mark))
	read := board.Read{ByID: map[int64]board.Found{}, DueRead: r.due}
	var lost []board.Term
	for n, epoch := range r.req.Epochs {
		if epoch == 0 {
			continue
		}
		t := f.termOf(r, int16(n))
		switch mark, now := f.window.Mark(t.Lane); {
		case !a.owned[t.Lane]:
			lost = append(lost, t)
		case now != t.Epoch: // it is being handed back
			read.Terms = append(read.Terms, board.TermRead{Term: t})
		default:
			read.Terms = append(read.Terms, board.TermRead{Term: t, Mark: mark})
		}
	}
	if len(lost) > 0 {
		f.lose(lost)
	}
	for _, v := range a.byID {
		read.ByID[v.id] = board.Found{Row: f.row(r, v), Dead: v.seen.dead}
	}
	for _, v := range a.ready {
		read.Ready = append(read.Ready, f.row(r, v))
	}
	for _, v := range a.due {
		read.Due = append(read.Due, f.row(r, v))
	}
	switch v := f.m.variant; {
	case v.bitsIgnored:
		f.board.ClearShadows()
	case v.unparksFromTheTop || v.triesFromTheTop:
		f.board.TakeAnyway(r.asks, read, v.triesFromTheTop)
	}
	progress := f.board.RowsRead(f.m.db.now, r.asks, read)
	f.more = p.More || progress.More
	if progress.ManyDue {
		f.duePoll = f.m.db.now
	}
	f.take()
	if !f.more {
		f.checkQuiet(r)
	}
}

func (f *forwarder) mark(lane int16) int64 {
	mark, _ := f.window.Mark(lane)
	return mark
}

// newLife forgets all that was read in another life of the server. The keeper takes the lanes anew.
func (f *forwarder) newLife(r *reading) {
	f.logf("finds a new life")
	f.window.Reset()
	var terms []board.Term
	for n, h := range f.held {
		terms = append(terms, board.Term{Lane: n, Epoch: h.epoch})
	}
	sortTerms(terms)
	f.lose(terms)
	clear(f.toLoad)
	f.retake = true
	f.board.ReadFailed(f.m.db.now, r.asks)
	f.take()
}

func sortTerms(terms []board.Term) {
	slices.SortFunc(terms, func(a, b board.Term) int { return int(a.Lane) - int(b.Lane) })
}

// lose ends terms.
func (f *forwarder) lose(terms []board.Term) {
	f.forget(terms)
	f.board.LanesLost(terms...)
	f.take()
}

// termOf is the term that a lane was asked for.
func (f *forwarder) termOf(r *reading, lane int16) board.Term {
	if f.m.variant.otherEpoch {
		return f.term(lane)
	}
	return board.Term{Lane: lane, Epoch: r.req.Epochs[lane]}
}

// row is what the board is given.
func (f *forwarder) row(r *reading, v version) *board.Row {
	return &board.Row{
		ID: v.id, Term: f.termOf(r, v.lane), Key: v.key, UUID: v.uuid, Topic: v.topic, Payload: make([]byte, v.size),
		CreatedAt: f.m.db.now, Attempts: v.seen.attempts, Life: r.answer.life,
	}
}

// worker starts a publish, if there is one to start.
func (f *forwarder) worker() bool {
	if f.m.tight {
		if f.launched == 0 {
			return false
		}
		f.launched--
	}
	return f.next()
}

func (f *forwarder) next() bool {
	if f.stopping || !f.m.ignoreLease && f.m.db.now.After(f.leaseUntil) {
		return false
	}
	c := f.board.Next(f.m.db.now)
	f.take()
	if c == nil {
		return false
	}
	f.started(c)
	return true
}

func (f *forwarder) started(c *board.Call) {
	r := c.Row
	f.logf("publishes %d (%s, key %q, topic %s, attempt %d) of lane %d, epoch %d", r.ID, r.UUID, r.Key, r.Topic, c.Attempt, r.Term.Lane, r.Term.Epoch)
	msg := f.m.messages[r.UUID]
	if msg == nil || msg.tx.committed == 0 && !msg.tx.lost {
		f.m.failf("row %d (%s) is published but was never committed", r.ID, r.UUID)
		return
	}
	if h := f.held[r.Term.Lane]; h == nil || h.epoch != r.Term.Epoch || h.handing {
		f.m.failf("row %d is published in lane %d, epoch %d, which is not ours or is being handed back", r.ID, r.Term.Lane, r.Term.Epoch)
	}
	topic := 0
	for _, o := range f.calls {
		if o.Row.Topic == r.Topic {
			topic++
		}
		if o.Row.Term == r.Term && o.Row.Key == r.Key && r.Key != "" && !o.timedOut {
			f.m.failf("row %d is published while row %d of the same key is under way", r.ID, o.Row.ID)
		}
		if o.Row == r {
			f.m.failf("row %d is published while the same call is under way", r.ID)
		}
	}
	if topic >= f.m.cfg.Concurrency || len(f.calls) >= 8*f.m.cfg.Concurrency {
		f.m.failf("row %d is published beside %d calls of its topic and %d in all", r.ID, topic, len(f.calls))
	}
	if slices.Contains(f.paused, r.Topic) {
		f.m.failf("row %d is published, whose topic %s an operator has paused", r.ID, r.Topic)
	}
	// The next attempt of a row without a key may be on the queue when a late success comes.
	if f.success[rowOf{r.Term, r.UUID}] && !msg.replayed && r.Key != "" {
		f.m.failf("row %d (%s) is published again after its success was told", r.ID, r.UUID)
	}
	f.calls = append(f.calls, &call{Call: c, msg: msg})
}

// publisher has something become of a call: it reaches the broker, or it returns.
func (f *forwarder) publisher() {
	if len(f.calls) == 0 {
		return
	}
	c := f.calls[f.m.rng.IntN(len(f.calls))]
	switch {
	case f.m.landsEarly && !c.landed && f.m.chance(10):
		f.land(c)
	case c.expired && f.m.chance(50):
		f.timeOut(c)
	case f.m.chance(f.m.slow) && !f.m.finishing: // it takes its time
	case c.Row.Topic == f.m.hungTopic && !f.m.revived && !f.stopping:
	default:
		f.returns(c)
	}
}

func (f *forwarder) land(c *call) {
	c.landed = true
	f.logf("sends %d (%s)", c.Row.ID, c.Row.UUID)
	f.m.landed(c.msg)
}

// timeOut tells the board that a call took too long.
func (f *forwarder) timeOut(c *call) {
	res := board.Result{Verdict: board.Rejected, Err: errTimeout}
	switch {
	case f.m.chance(30):
		res.Verdict = board.Unavailable
	case f.m.chance(5):
		res.Verdict = board.Permanent
	}
	f.logf("times out %d (%s), %v", c.Row.ID, c.Row.UUID, res.Verdict)
	c.expired, c.timedOut = false, true
	f.tell(c, res, false)
	f.board.TimedOut(f.m.db.now, c.Call, res)
	if f.m.variant.timeOutTwice {
		c.Revive(true)
		f.board.TimedOut(f.m.db.now, c.Call, res)
	}
	f.spoilHeads()
	f.take()
}

func (f *forwarder) spoilHeads() {
	if f.m.variant.heldOnceSettled {
		f.board.ForgetHeads()
	}
}

func (f *forwarder) returns(c *call) {
	var res board.Result
	switch p := f.m.rng.IntN(100); {
	case c.Row.Topic == f.m.deadTopic && !f.m.revived:
		res = board.Result{Verdict: board.Unavailable, Err: errUnavailable}
	case f.m.finishing && !f.m.chance(10): // most get through in the end
	case (f.stopping || c.recalled) && !c.landed && p < 30:
		res = board.Result{Verdict: board.Aborted, Err: errRejected}
	case p < f.m.rejects:
		res = board.Result{Verdict: board.Rejected, Err: errRejected}
	case p < f.m.rejects+f.m.unavailable:
		res = board.Result{Verdict: board.Unavailable, Err: errUnavailable}
	case p < f.m.rejects+f.m.unavailable+2:
		res = board.Result{Verdict: board.Permanent, Err: errRejected}
	}
	if res.Verdict == board.OK && !c.landed {
		f.land(c)
	}
	f.logf("returns from %d (%s): %v, late %v", c.Row.ID, c.Row.UUID, res.Verdict, c.timedOut)
	f.calls = slices.DeleteFunc(f.calls, func(o *call) bool { return o == c })
	f.tell(c, res, c.timedOut)
	switch late := c.timedOut; {
	case late && f.m.variant.lateSuccessIgnored:
		res = board.Result{Verdict: board.Rejected, Err: errRejected}
	case late && f.m.variant.lateErrorCharged && res.Verdict == board.Rejected:
		c.Revive(true)
	}
	f.board.Returned(f.m.db.now, c.Call, res)
	f.spoilHeads()
	f.take()
	if c.expired { // its end was on its way: it comes too late
		f.board.TimedOut(f.m.db.now, c.Call, board.Result{Verdict: board.Rejected, Err: errTimeout})
		f.take()
	}
	if f.m.tight && !c.timedOut {
		f.next()
	}
}

// tell notes what the board must make of a call.
func (f *forwarder) tell(c *call, res board.Result, late bool) {
	t := f.told[c.Row]
	if t == nil {
		t = &telling{}
		f.told[c.Row] = t
	}
	switch res.Verdict {
	case board.OK:
		t.ok = true
		f.unsettled[c.Row] = true
		f.success[rowOf{c.Row.Term, c.Row.UUID}] = true
		c.msg.accepted = true
	case board.Rejected, board.Permanent:
		if t.failed = t.failed || !late; !late {
			f.lastFailed = c.Row
		}
	}
}

// settler makes a step of the settling goroutine: it takes results, commits them, and gets the answer.
func (f *forwarder) settler() {
	s := f.settling
	switch {
	case f.stopping && !f.m.calm && !f.m.finishing && f.m.chance(5):
		f.giveUp()
	case s == nil && f.m.tight && !f.settle && len(f.left.published)+len(f.left.failed) == 0: // nobody woke it
	case s == nil:
		f.beginSettle()
	case !s.committed:
		f.commitSettle(s)
	case f.m.chance(f.m.unknown):
		f.logf("does not learn what became of a settling")
		f.settling = nil // settled again
	default:
		f.endSettle(s)
	}
}

func (f *forwarder) beginSettle() {
	published, failures := f.results(1 + f.m.rng.IntN(10))
	f.settle = len(published)+len(failures) > 0 // it looks again until there are none
	f.left.published = append(f.left.published, published...)
	f.left.failed = append(f.left.failed, failures...)
	if len(f.left.published)+len(f.left.failed) == 0 {
		return
	}
	s := &settling{}
	s.published = f.left.published[:f.m.part(len(f.left.published))]
	s.failed = f.left.failed[:f.m.part(len(f.left.failed))]
	f.settling = s
}

// results takes what is to be settled, and looks whether the board was told it.
func (f *forwarder) results(most int) (published []*board.Row, failures []board.Failure) {
	published, failures = f.board.Results(most)
	f.take()
	for _, r := range published {
		t := f.told[r]
		if t == nil || !t.ok || t.okTaken {
			f.m.failf("forwarder %d: the success of row %d is to be settled, which was not told, or twice", f.id, r.ID)
			continue
		}
		t.okTaken = true
	}
	for _, r := range failures {
		t := f.told[r.Row]
		if t == nil || !t.failed || t.failedTaken {
			f.m.failf("forwarder %d: the failure of row %d is to be settled, which was not told, or twice", f.id, r.Row.ID)
			continue
		}
		t.failedTaken = true
	}
	return published, failures
}

func (f *forwarder) commitSettle(s *settling) {
	if f.m.chance(f.m.settleFails) {
		f.logf("fails to settle")
		f.settling = nil
		return
	}
	s.committed = true
	var list []settled
	for _, r := range s.published {
		list = append(list, settled{r.ID, r.UUID, r.Life})
	}
	var problem string
	if s.locked, problem = f.m.db.settlePublished(list); problem != "" {
		f.m.failf("forwarder %d: %s", f.id, problem)
	}
	var fails []failed
	for _, x := range s.failed {
		epoch := x.Row.Term.Epoch
		if f.m.variant.rejectedInOtherTerm {
			epoch = f.m.db.lanes[x.Row.Term.Lane].epoch
		}
		fails = append(fails, failed{id: x.Row.ID, uuid: x.Row.UUID, lane: x.Row.Term.Lane, epoch: epoch,
			attempts: x.Attempts, delay: x.Delay, permanent: x.Permanent})
	}
	s.outcomes = f.m.db.settleFailed(f.id, fails)
	f.logf("settles %v, locked %v, and failures %v: %v", rowIDs(s.published), s.locked, failureIDs(s.failed), s.outcomes)
}

func rowIDs(rows []*board.Row) (ids []int64) {
	for _, r := range rows {
		ids = append(ids, r.ID)
	}
	return ids
}

func failureIDs(list []board.Failure) (ids []int64) {
	for _, x := range list {
		ids = append(ids, x.Row.ID)
	}
	return ids
}

func (f *forwarder) endSettle(s *settling) {
	f.settling = nil
	var done []*board.Row
	var lockedRows []*board.Row
	for _, r := range s.published {
		if slices.ContainsFunc(s.locked, func(l settled) bool { return l.id == r.ID && l.uuid == r.UUID }) {
			lockedRows = append(lockedRows, r)
		} else {
			done = append(done, r)
		}
	}
	var outcomes []board.Outcome
	var lockedFailures []board.Failure
	var over []board.Term
	for i, x := range s.failed {
		o := board.Outcome{Failure: x}
		switch s.outcomes[i] {
		case "waiting":
			o.Kind = board.Waiting
		case "dead":
			o.Kind = board.Dead
		case "gone":
			o.Kind = board.Gone
		case "fenced":
			o.Kind = board.Fenced
			over = append(over, x.Row.Term)
		case "locked":
			lockedFailures = append(lockedFailures, x)
			continue
		}
		outcomes = append(outcomes, o)
	}
	for _, r := range done {
		delete(f.unsettled, r)
	}
	for _, x := range s.failed {
		f.told[x.Row].failedAt = f.m.db.tick()
	}
	f.left.published = append(f.left.published[len(s.published):], lockedRows...)
	f.left.failed = append(f.left.failed[len(s.failed):], lockedFailures...)
	f.logf("learns that it settled %v, %v", rowIDs(done), s.outcomes)
	f.forget(over)
	f.board.Settled(f.m.db.now, done, outcomes)
	if f.m.variant.forgetsAtOnce {
		f.board.ForgetNow()
	}
	f.take()
}

// forget drops terms of which the board finds out by itself that they are over.
func (f *forwarder) forget(terms []board.Term) {
	for _, t := range terms {
		if h := f.held[t.Lane]; h != nil && h.epoch == t.Epoch {
			if slices.Contains(f.m.lanes, t.Lane) {
				f.logf("loses lane %d, epoch %d", t.Lane, t.Epoch)
			}
			delete(f.held, t.Lane)
			f.window.Drop(t.Lane)
		}
		if f.toLoad[t.Lane] == t.Epoch {
			delete(f.toLoad, t.Lane)
		}
	}
}

// timer makes a step of the goroutine with the one timer.
func (f *forwarder) timer() {
	f.board.Tick(f.m.db.now)
	f.take()
}

// keeper makes a step of the goroutine that keeps the lease: it looks, it changes the lanes, it learns what came of it.
func (f *forwarder) keeper() {
	k := f.keeping
	switch {
	case k == nil:
		f.look()
	case !k.done:
		f.change(k)
	default:
		f.keeping = nil
		for _, t := range k.taken {
			if f.m.chance(5) && !f.m.finishing {
				continue // the answer was lost
			}
			f.toLoad[t.Lane] = t.Epoch
		}
		f.retake = false
	}
}

func (f *forwarder) look() {
	began := f.m.db.now
	f.m.db.heartbeat(f.id, f.stopping)
	f.leaseUntil = began.Add(f.m.db.leases)
	f.take()
	members, lanes := f.m.db.view(f.id)
	v := lease.View{Me: strconv.Itoa(f.id), Members: members, Lanes: lanes, Held: make(map[int16]lease.Held, laneCount),
		Stopping: f.stopping, TTL: f.m.db.leases, Short: f.short}
	for n, h := range f.held {
		v.Held[n] = lease.Held{Epoch: h.epoch, Handing: h.handing}
	}
	for n, epoch := range f.toLoad {
		v.Held[n] = lease.Held{Epoch: epoch}
	}
	if f.loading != nil {
		v.Held[f.loading.lane] = lease.Held{Epoch: f.loading.epoch}
	}
	f.looked()
	f.keeping = &keeping{plan: v.Plan()}
	f.short = f.keeping.plan.Short
}

// looked loads heads too early.
func (f *forwarder) looked() {
	if f.m.variant.headsBeforeTake && f.m.thief != f {
		f.headsBefore = f.m.allHeads()
	}
}

func (f *forwarder) change(k *keeping) {
	k.done = true
	if len(k.plan.Lost) > 0 {
		f.lose(terms(k.plan.Lost))
	}
	for _, t := range terms(k.plan.HandBack) {
		f.handBack(t)
	}
	var free []lease.Term
	for n, h := range f.held {
		if h.free || h.handing && f.m.variant.freeAtOnce {
			free = append(free, lease.Term{Lane: n, Epoch: h.epoch})
		}
	}
	if len(free) > 0 {
		f.m.db.giveBack(f.id, free)
		list := terms(free)
		sortTerms(list)
		f.lose(list)
	}
	k.taken = append(f.m.db.retake(f.id, k.plan.Retake), f.m.db.take(f.id, k.plan.Take)...)
	if len(k.plan.Retake)+len(k.plan.Take) > 0 {
		f.logf("retakes or takes %v", f.usedTerms(k.taken))
	}
}

func (f *forwarder) usedTerms(list []lease.Term) []lease.Term {
	return slices.DeleteFunc(slices.Clone(list), func(t lease.Term) bool { return !slices.Contains(f.m.lanes, t.Lane) })
}

func terms(list []lease.Term) []board.Term {
	of := make([]board.Term, len(list))
	for i, t := range list {
		of[i] = board.Term{Lane: t.Lane, Epoch: t.Epoch}
	}
	return of
}

// handBack stops work on a lane.
func (f *forwarder) handBack(t board.Term) {
	if f.toLoad[t.Lane] == t.Epoch { // it was never started
		delete(f.toLoad, t.Lane)
		f.m.db.giveBack(f.id, []lease.Term{{Lane: t.Lane, Epoch: t.Epoch}})
		return
	}
	h := f.held[t.Lane]
	if h == nil || h.epoch != t.Epoch || h.handing {
		return
	}
	if slices.Contains(f.m.lanes, t.Lane) {
		f.logf("hands back lane %d, epoch %d", t.Lane, t.Epoch)
	}
	h.handing = true
	if !slices.Contains(f.m.lanes, t.Lane) {
		h.free = true
		return
	}
	f.window.Drop(t.Lane)
	f.board.HandBack(t)
	f.take()
}

// maintainer makes a step of the goroutine for what is in no hurry: a page of the recheck of heads, or of the sweep.
func (f *forwarder) maintainer() {
	if f.stopping {
		return
	}
	if c := f.checking; c != nil {
		f.checking = nil
		f.logf("rechecks heads %v in lane %d, ids %d to %d", c.heads, c.term.Lane, c.from, c.to)
		f.board.HeadsSeen(f.m.db.now, c.began, c.term, c.from, c.to, c.heads)
		f.take()
		return
	}
	n := f.m.lanes[f.m.rng.IntN(len(f.m.lanes))]
	h := f.held[n]
	if h == nil || h.handing {
		return
	}
	switch p := f.m.rng.IntN(100); {
	case p < 40:
		f.beginCheck(f.term(n))
	case p < 70:
		f.sweep(f.term(n))
	case p < 80:
		f.hold()
	case !f.m.variant.noLook:
		f.lookAtFirsts(f.term(n))
	}
}

// hold tells the board which topics an operator has paused.
func (f *forwarder) hold() {
	f.paused = slices.Clone(f.m.db.paused)
	f.logf("hears that an operator has paused %v", f.paused)
	f.board.Hold(f.m.db.now, f.paused)
	f.take()
}

// lookAtFirsts looks whether what keys wait for is still pending.
func (f *forwarder) lookAtFirsts(t board.Term) {
	var gone []int64
	for _, id := range f.board.Firsts(t) {
		if m := f.m.db.find(id); m == nil || !m.pending() {
			gone = append(gone, id)
		}
	}
	if len(gone) > 0 {
		f.logf("finds what keys wait for gone in lane %d: %v", t.Lane, gone)
		f.board.FirstsGone(f.m.db.now, t, gone)
		f.take()
	}
}

func (f *forwarder) beginCheck(t board.Term) {
	if f.m.variant.noRecheck {
		return
	}
	c := &checking{began: f.m.db.now, term: t, from: f.sweeping[-t.Lane-1], to: 1 << 62}
	page := 1 + f.m.rng.IntN(5)
	for _, v := range f.m.db.heads(t.Lane, c.from, page) {
		c.heads = append(c.heads, f.m.head(v))
	}
	if len(c.heads) == page {
		c.to = c.heads[page-1].ID
		f.sweeping[-t.Lane-1] = c.to
	} else {
		f.sweeping[-t.Lane-1] = 0
	}
	f.checking = c
}

func (f *forwarder) sweep(t board.Term) {
	mark, _ := f.window.Mark(t.Lane)
	from := f.sweeping[t.Lane]
	to := min(mark, from+int64(1+f.m.rng.IntN(50)))
	f.sweeping[t.Lane] = to
	if to >= mark {
		f.sweeping[t.Lane] = 0
	}
	if f.m.variant.noSweep {
		return
	}
	if ids := f.m.db.sweep(t.Lane, from, to); len(ids) > 0 {
		f.logf("sweeps lane %d: %v", t.Lane, ids)
		f.board.Strays(t, ids)
		f.take()
	}
}

// stop begins an orderly end.
func (f *forwarder) stop() {
	f.logf("stops")
	f.stopping = true
	if f.reading != nil {
		f.readFailed(f.reading)
	}
	f.late, f.loading, f.checking = nil, nil, nil
	for n, epoch := range f.toLoad {
		f.m.db.giveBack(f.id, []lease.Term{{Lane: n, Epoch: epoch}})
	}
	clear(f.toLoad)
	for n, h := range f.held {
		h.handing, h.free = true, h.free || !slices.Contains(f.m.lanes, n)
	}
	f.board.Stop()
	f.take()
	if f.m.variant.stopDropsResults {
		f.giveUp()
	}
}

// giveUp ends settling at a stop before all is settled.
func (f *forwarder) giveUp() {
	f.logf("gives up settling")
	published, failures := f.results(1 << 30)
	f.settling = nil
	f.board.Unsettled(append(f.left.published, published...), append(f.left.failed, failures...))
	f.left = settling{}
	clear(f.unsettled)
	f.take()
}

// stopped says whether an orderly end is complete.
func (f *forwarder) stopped() bool {
	return f.stopping && len(f.held) == 0 && f.settling == nil && f.keeping == nil && f.board.Counts().Unsettled == 0 && !slices.ContainsFunc(f.calls, func(c *call) bool { return !c.timedOut })
}

func (f *forwarder) standsStill() bool {
	return f.frozen.After(f.m.db.now) || f.frozenWhile != nil && f.frozenWhile()
}

// step has one of the goroutines make a step.
func (f *forwarder) step() {
	switch p := f.m.rng.IntN(100); {
	case p < 30:
		f.reader()
	case p < 45:
		f.worker()
	case p < 65:
		f.publisher()
	case p < 80:
		f.settler()
	case p < 85:
		f.timer()
	case p < 90:
		if f.m.maintains {
			f.maintainer()
		}
	case f.m.chance(f.m.keeps):
		f.keeper()
	}
}

func (f *forwarder) String() string {
	return fmt.Sprintf("forwarder %d: %d lanes, %d calls, %d and %d results left", f.id, len(f.held), len(f.calls), len(f.left.published), len(f.left.failed))
}
