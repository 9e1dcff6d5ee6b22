package board_test

import "github.com/millrace-go/watermill-outbox/forwarder/internal/board"

// said is what a forwarder's board was told of a call.
type said struct {
	topic  string
	uuid   string
	ok     bool
	guilty bool // its topic had published something since it failed before
}

// repeated is the place of what comes of a message that was published before: nothing, unless an operator wants it sent
// again.
const repeated = -2

// answered notes an answer that says something of a topic, and returns its place.
func (f *forwarder) answered(c *call, res board.Result, late bool) int {
	a := said{topic: c.Row.Topic, uuid: c.Row.UUID, ok: res.Verdict == board.OK}
	switch {
	case a.ok:
	case late || res.Verdict != board.Unknown && res.Verdict != board.Unavailable:
		return -1
	case !f.board.Owns(c.Row.Term):
		return -1 // nobody asks
	case f.board.Published(c.Row):
		return repeated
	default:
		a.guilty = f.workedSince(a)
	}
	f.answers = append(f.answers, a)
	return len(f.answers) - 1
}

// workedSince says whether a topic has published something since a message failed before.
func (f *forwarder) workedSince(a said) (worked bool) {
	for i := len(f.answers) - 1; i >= 0; i-- {
		switch b := f.answers[i]; {
		case b.topic != a.topic:
		case b.ok:
			worked = true
		case b.uuid == a.uuid:
			return worked
		}
	}
	return false
}

// isGuilty says whether what was answered shows that a message is at fault: its topic has published something since, or
// since it failed before, or it is the only one that failed since something was published.
func (f *forwarder) isGuilty(at int) bool {
	if at < 0 {
		return at == repeated
	}
	a := f.answers[at]
	if a.guilty {
		return true
	}
	for _, b := range f.answers[at+1:] {
		if b.ok && b.topic == a.topic {
			return true
		}
	}
	for i := at - 1; i >= 0; i-- {
		switch b := f.answers[i]; {
		case b.topic != a.topic || b.guilty:
		case b.ok:
			return true
		case b.uuid != a.uuid:
			return false
		}
	}
	return true
}
