package board_test

import "github.com/millrace-go/watermill-outbox/forwarder/internal/board"

// said is what a forwarder's board was told of a call.
type said struct {
	topic string
	uuid  string
	ok    bool
	known bool // the error said whose fault it was
}

// repeated is the place of what comes of a message that was published before: nothing, unless an operator wants it sent
// again.
const repeated = -2

// answered notes an answer that says something of a topic, and returns its place.
func (f *forwarder) answered(c *call, res board.Result, late bool) int {
	a := said{topic: c.Row.Topic, uuid: c.Row.UUID, ok: res.Verdict == board.OK, known: res.Verdict != board.Unknown}
	switch {
	case a.ok:
	case late || res.Verdict != board.Unknown && res.Verdict != board.Unavailable:
		return -1
	case !f.board.Owns(c.Row.Term):
		return -1 // nobody asks
	case f.board.Published(c.Row):
		return repeated
	}
	f.answers = append(f.answers, a)
	return len(f.answers) - 1
}

// mayCharge reports whether few messages of the topic had failed without a success in between.
func (f *forwarder) mayCharge(at int) bool {
	if at < 0 {
		return at == repeated
	}
	failed := map[string]bool{}
	for i := at; i >= 0; i-- {
		switch b := f.answers[i]; {
		case b.topic != f.answers[at].topic:
		case b.ok:
			return true
		case !b.known:
			if failed[b.uuid] = true; len(failed) == 5 {
				return false
			}
		}
	}
	return true
}
