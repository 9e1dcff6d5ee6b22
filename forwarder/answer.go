package forwarder

import (
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
)

// answered makes of an answer what the board wants to know. It is called under mu.
func (e *engine) answered(req request, ans answer) board.Read {
	read := ans.read
	for n, epoch := range req.window.Epochs {
		t := board.Term{Lane: int16(n), Epoch: epoch}
		switch mark, now := e.window.Mark(t.Lane); {
		case epoch == 0:
		case !ans.Owned[n]:
			e.lose(t)
		case now != epoch: // it is being handed back
			read.Terms = append(read.Terms, board.TermRead{Term: t})
		default:
			read.Terms = append(read.Terms, board.TermRead{Term: t, Mark: mark})
		}
	}
	return read
}

// failed takes a request back.
func (e *engine) failed(req request, err error) {
	e.step(func(now time.Time) {
		e.window.Failed(req.window, timedOut(err))
		e.board.ReadFailed(now, req.asks)
	})
}

// newLife forgets all that was read, because ids may mean other messages now. What is being published is so under its
// old ids, and settled only where they mean the same message. The keeper takes the lanes anew. It is called under mu.
func (e *engine) newLife() {
	e.window.Reset()
	for n, l := range e.lanes {
		e.lose(board.Term{Lane: n, Epoch: l.epoch})
	}
	signal(e.leaseNow)
}
