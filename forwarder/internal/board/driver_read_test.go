package board_test

import (
	"fmt"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/window"
)

type reading struct {
	asks   board.Asks
	req    window.Request
	due    bool
	began  int // clock
	answer *answer

	// What became of rows that came without a payload, once that was asked for.
	asked            bool
	came, late, gone map[int64]bool
	timedOut         bool
}

type loading struct {
	lane  int16
	epoch int64
	from  int64
	heads []board.Head
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
	case r != nil && f.m.withholds && !r.asked:
		f.askPayloads(r)
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
	return !f.m.tight || f.read || f.dirty || f.more && f.board.HasRoom() || !due.IsZero() && !due.After(f.m.db.now) ||
		!f.duePoll.After(f.m.db.now)
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
	f.board.LaneTaken(f.m.db.now, board.NewTaken(f.m.db.now, t, heads))
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
	r.req = f.window.Next(room, true, func(lane int16, mark int64) (int, int) {
		return f.board.Known(f.term(lane), mark)
	})
	r.req.Stretch = min(r.req.Stretch, f.m.stretch())
	if f.m.withholds {
		r.req.Whole = 5
	}
	f.reading, f.dirty, f.read, f.more = r, false, false, false
	f.logf("begins a read: marks %v, limits %v, stretch %d, ids %v", f.used(f.mark), f.used(func(n int16) int64 {
		return r.req.Limits[n]
	}), r.req.Stretch, r.asks.IDs)
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
		l := laneQuery{
			lane: int16(n), epoch: epoch, mark: r.req.Marks[n], rows: r.req.Limits[n], rewound: r.req.Rewound[n],
			due: int64(r.asks.Due[n]),
		}
		q.lanes = append(q.lanes, l)
	}
	f.m.variant.spoilQuery(f, &q)
	a := f.m.db.fetch(q, func() { f.m.others(30) })
	f.lastSeq = a.seq
	r.answer = &a
	f.logf("reads: snapshot %d:%v next %d seq %d rewind %d, ready %v, by id %v, due %v", a.xmax, a.running, a.nextXid,
		a.seq, a.rewind,
		idsOf(a.ready), idsOf(a.byID), idsOf(a.due))
}

func idsOf(list []version) []int64 {
	of := make([]int64, len(list))
	for i, v := range list {
		of[i] = v.id
	}
	return of
}

// askPayloads asks for what the answer leaves out.
func (f *forwarder) askPayloads(r *reading) {
	r.asked = true
	read := f.readOf(r)
	wanted := f.board.Wanted(r.asks, &read)
	if len(wanted) == 0 {
		return
	}
	most := len(wanted)
	if f.m.chance(f.m.readFails) {
		most, r.timedOut = f.m.rng.IntN(most), f.m.chance(50)
	}
	r.came, r.late = f.m.db.payloads(wanted, r.req.Bytes, most)
	r.gone = map[int64]bool{}
	for _, row := range wanted {
		r.gone[row.ID] = !r.came[row.ID] && !r.late[row.ID]
	}
	if f.m.variant.lateIsGone {
		r.late, r.gone = nil, r.late
	}
	f.logf("reads payloads of %d rows with room for %d: late %v, gone %v", len(wanted), r.req.Bytes, r.late, r.gone)
}

// readOf is what the board is told, before what did not come is taken out of it.
func (f *forwarder) readOf(r *reading) board.Read {
	read := board.Read{ByID: map[int64]board.Found{}, DueRead: r.due}
	for _, v := range r.answer.byID {
		read.ByID[v.id] = board.Found{Row: f.row(r, v), Dead: v.seen.dead}
	}
	for _, v := range r.answer.ready {
		read.Ready = append(read.Ready, f.row(r, v))
	}
	for _, v := range r.answer.due {
		read.Due = append(read.Due, f.row(r, v))
	}
	return read
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
		Rewind:   a.rewind, Rows: len(a.ready) + len(a.byID) + len(a.due),
		Took: time.Duration(f.m.rng.IntN(100)) * time.Millisecond,
	}
	for n := range a.owned {
		answer.Owned[n] = true
	}
	for _, v := range a.ready {
		answer.Counts[v.lane]++
		answer.Last[v.lane] = v.id
		if answer.First == 0 || v.id < answer.First {
			answer.First = v.id
		}
	}
	read := f.readOf(r)
	answer.Cut, answer.TimedOut = read.Leave(r.late, r.gone), r.timedOut
	f.m.variant.spoilAnswer(f, r, &answer)
	p := f.window.Complete(r.req, answer)
	if p.Life == window.Changed {
		f.newLife(r)
		return
	}
	f.logf("ends the read: marks %v", f.used(f.mark))
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
	switch v := f.m.variant; {
	case v.bitsIgnored:
		f.board.ClearShadows()
	case v.unparksFromTheTop || v.triesFromTheTop:
		f.board.TakeAnyway(r.asks, read, v.triesFromTheTop)
	}
	if len(r.asks.IDs) == 0 && len(read.Ready) > 1 && f.m.chance(30) {
		n := 1 + f.m.rng.IntN(len(read.Ready)-1)
		f.board.PartRead(f.m.db.now, read.Ready[:n])
		f.take()
		for range 1 + f.m.rng.IntN(10) {
			f.worker()
			f.publisher()
			f.settler()
		}
		read.Ready = read.Ready[n:]
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

// termOf is the term that a lane was asked for.
func (f *forwarder) termOf(r *reading, lane int16) board.Term {
	if f.m.variant.otherEpoch {
		return f.term(lane)
	}
	return board.Term{Lane: lane, Epoch: r.req.Epochs[lane]}
}

// row is what the board is given.
func (f *forwarder) row(r *reading, v version) *board.Row {
	large := int64(v.size) > r.req.Whole && !r.came[v.id]
	return &board.Row{
		Large: large, ID: v.id, Term: f.termOf(r, v.lane), Key: v.key, UUID: v.uuid, Topic: v.topic,
		Payload:   make([]byte, v.size),
		CreatedAt: f.m.db.now, Attempts: v.seen.attempts, Life: r.answer.life, Generation: fmt.Sprint(v.seen.batch),
	}
}
