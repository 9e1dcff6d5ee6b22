package cursor

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// maxSegments bounds the tracked segments; beyond it neighbours are merged, which only lowers bounds.
const maxSegments = 64

// tracker remembers which transactions were in progress, or about to begin, when the outbox was last
// read, and for each a bound: every row that the transaction writes has a larger id. When a later
// snapshot no longer shows it in progress, the read starts again at the bound, so that whatever it
// wrote is found in the same snapshot as anything that was written after it.
type tracker struct {
	xids       map[int64]int64 // in progress, by transaction id, to bound
	segments   []segment       // ids that were at or above the snapshot's xmax, ascending
	seq        int64           // the sequence as of the last complete read; 0 = nothing read yet
	nextBounds map[int64]int64 // higher bounds that hold if the transaction is still in progress in the next read
}

// segment is a range of transaction ids [lo, hi) with one bound.
type segment struct{ lo, hi, bound int64 }

// Snapshot is what one read reported about the transactions at that moment.
type Snapshot struct {
	Xmax       int64   // the first id that had not completed
	InProgress []int64 // below Xmax and not completed
	NextXid    int64   // the next id to be assigned
	Seq        int64   // the sequence, read before NextXid
}

// ParseSnapshot reads the text form of pg_snapshot, xmin:xmax:xip,xip.
func ParseSnapshot(text string, nextXid, seq int64) (Snapshot, error) {
	s := Snapshot{NextXid: nextXid, Seq: seq}
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return s, fmt.Errorf("snapshot %q is not xmin:xmax:xip", text)
	}
	var err error
	if s.Xmax, err = strconv.ParseInt(parts[1], 10, 64); err != nil {
		return s, fmt.Errorf("snapshot %q: %w", text, err)
	}
	if parts[2] == "" {
		return s, nil
	}
	for _, x := range strings.Split(parts[2], ",") {
		xid, err := strconv.ParseInt(x, 10, 64)
		if err != nil {
			return s, fmt.Errorf("snapshot %q: %w", text, err)
		}
		s.InProgress = append(s.InProgress, xid)
	}
	return s, nil
}

// args returns the tracked ids and segments as the arguments of the next read.
func (t *tracker) args() (xids, bounds, los, segmentBounds []int64) {
	xids, bounds = make([]int64, 0, len(t.xids)), make([]int64, 0, len(t.xids))
	for _, xid := range slices.Sorted(maps.Keys(t.xids)) {
		xids, bounds = append(xids, xid), append(bounds, t.xids[xid])
	}
	los, segmentBounds = make([]int64, 0, len(t.segments)), make([]int64, 0, len(t.segments))
	for _, s := range t.segments {
		los, segmentBounds = append(los, s.lo), append(segmentBounds, s.bound)
	}
	return
}

// observe applies a complete read. A transaction that was already tracked keeps its bound. A new one got its id after
// the previous read had fixed its nextXid, which it did after reading the sequence: all its rows are above the sequence
// of the previous read.
func (t *tracker) observe(s Snapshot) {
	xids := make(map[int64]int64, len(s.InProgress))
	for _, xid := range s.InProgress {
		xids[xid] = max(t.boundOf(xid), t.nextBounds[xid])
	}
	t.nextBounds = nil
	var segments []segment
	from := s.Xmax
	for _, old := range t.segments {
		if old.hi <= from {
			continue
		}
		segments = append(segments, segment{max(old.lo, from), old.hi, old.bound})
		from = old.hi
	}
	if from < s.NextXid {
		segments = append(segments, segment{from, s.NextXid, t.seq})
	}
	t.xids, t.segments, t.seq = xids, mergeSegments(segments), s.Seq
}

// lag returns how far the lowest bound of a transaction in progress is behind the ids that were read.
func (t *tracker) lag() int64 {
	lag := int64(0)
	for _, bound := range t.xids {
		lag = max(lag, t.seq-bound)
	}
	return lag
}

// belowOpen returns the lowest bound of a transaction that had not ended, or had not begun, by the last read.
func (t *tracker) belowOpen() int64 {
	lowest := t.seq - t.lag()
	for _, s := range t.segments {
		lowest = min(lowest, s.bound)
	}
	return lowest
}

// writersSeen applies which transactions may have written to the outbox, determined after the last read. Any other
// transaction that is still in progress at the next read cannot have written before: its rows will be above the ids
// already read. One that is no longer in progress may have written and committed since, so the next read itself still
// uses the old bound.
func (t *tracker) writersSeen(writers map[uint32]bool) {
	t.nextBounds = map[int64]int64{}
	for xid := range t.xids {
		if !writers[uint32(xid)] {
			t.nextBounds[xid] = t.seq
		}
	}
}

func (t *tracker) boundOf(xid int64) int64 {
	if bound, ok := t.xids[xid]; ok {
		return bound
	}
	for _, s := range t.segments {
		if s.lo <= xid && xid < s.hi {
			return s.bound
		}
	}
	return t.seq
}

func mergeSegments(segments []segment) []segment {
	for len(segments) > maxSegments {
		last := len(segments) - 1
		a, b := segments[last-1], segments[last]
		segments = append(segments[:last-1], segment{a.lo, b.hi, min(a.bound, b.bound)})
	}
	return segments
}
