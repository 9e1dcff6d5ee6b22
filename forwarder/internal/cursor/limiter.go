package cursor

import (
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/lanes"
)

const (
	slowRead        = 20 * time.Millisecond
	minSpan         = 256
	firstSpan       = 32768
	maxSpan         = 1 << 40
	guessedRowBytes = 512 << 10 // before any row was seen
	maxCut          = 16
	minWhole        = 1 << 10   // bytes: smaller rows always come whole,
	maxWhole        = 256 << 10 // and larger ones never do
)

// Room is how much more memory takes.
type Room = lanes.Room

// limiter keeps reads short enough to avoid their timeout and to let others in between, and long enough to skip over a
// clean index quickly.
type limiter struct {
	span     int64
	rowBytes int64 // moving average
	cut      uint  // how often the rows are halved, after reads that timed out
}

func newLimiter() limiter { return limiter{span: firstSpan, rowBytes: guessedRowBytes} }

// adapt learns from a complete read. Long transactions that end one after another must not move the cursors back faster
// than they advance, so a read that was moved back makes the next one longer, however slow it was.
func (l *limiter) adapt(p Progress, took time.Duration) {
	switch {
	case !p.Short:
		l.span = max(min(l.span*2, firstSpan), l.span/2)
	case p.Rewound || took < slowRead:
		l.span = min(maxSpan, l.span*2)
	case took > 4*slowRead:
		l.span = max(minSpan, l.span/2)
	}
}

// measure updates the average row size from a complete read.
func (l *limiter) measure(a *Answer) {
	switch {
	case a.TimedOut:
		l.cut = min(l.cut+1, maxCut)
	case l.cut > 0:
		l.cut--
	}
	if a.Rows > 0 {
		l.rowBytes = max(l.rowBytes/8, a.Bytes/int64(a.Rows), 1)
	}
}

func (l *limiter) timedOut() {
	l.span = max(minSpan, l.span/4)
	l.cut = min(l.cut+1, maxCut)
}

// rows returns how many rows of the average size there is room for.
func (l *limiter) rows(room Room) int64 {
	return max(0, min(int64(room.Rows), room.Bytes/l.rowBytes)) >> l.cut
}

// knownBytes bounds the known rows that are read again.
const knownBytes = 32 << 20

// setLimits sets how many rows of each lane to read: half of the room is shared equally, half goes to lanes that have
// more. Known rows are added on top, or a read of a lane where many rows wait would find nothing new: it returns how
// many rows were added.
func (c *Cursors) setLimits(
	r *Request, room Room, known func(lane int16, cursor int64) (above, all int),
) (again int64) {
	if room.Rows <= 0 {
		return 0
	}
	lanes, full, inAll := int64(0), int64(0), int64(0)
	var above, below [Lanes]int64
	for n := range c.lanes {
		l := &c.lanes[n]
		if l.epoch == 0 {
			continue
		}
		lanes++
		if l.full {
			full++
		}
		a, all := known(int16(n), l.cursor)
		above[n], below[n] = int64(a), int64(all-a)
		inAll += int64(all)
	}
	rows, most := c.limiter.rows(room), knownBytes/c.limiter.rowBytes>>c.limiter.cut
	for n := range c.lanes {
		l := &c.lanes[n]
		if l.epoch == 0 {
			continue
		}
		if inAll > most { // each gets its part
			above[n], below[n] = above[n]*most/inAll, below[n]*most/inAll
		}
		r.Limits[n] = share(rows, lanes, full, l.full) + above[n]
		r.Rewound[n] = below[n]
		again += above[n] + below[n]
	}
	return again
}

// setSizes bounds the bytes that a read returns. Rows much larger than the room for an average row come without their
// payloads, which are read afterwards as far as there is room: at most Bytes, or one row alone.
func (c *Cursors) setSizes(r *Request, room Room, again int64) {
	r.Bytes = max(0, room.Bytes>>c.limiter.cut)
	rows := int64(0)
	for n := range r.Limits {
		rows += min(r.Limits[n], r.Span) + r.Rewound[n]
	}
	if r.Single {
		rows = min(rows, r.Span+again)
	}
	rows += int64(room.Others)
	r.Whole = min(maxWhole, max(minWhole, 2*(r.Bytes+again*c.limiter.rowBytes)/max(1, rows)))
}

// share divides room for rows among lanes.
func share(rows, lanes, full int64, isFull bool) int64 {
	n := rows / 2 / lanes
	if isFull {
		n += rows / 2 / full
	}
	return max(n, 1)
}
