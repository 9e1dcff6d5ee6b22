package dispatch_test

import "github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"

// said is the result of a call as reported to a forwarder's dispatcher.
type said struct {
	topic string
	uuid  string
	ok    bool
	known bool // the error had a verdict
}

// repeated is the index of results of a message that was published before, and so shows nothing about its topic unless
// an operator has requeued it.
const repeated = -2

// answered records a result that shows something about a topic, and returns its index.
func (f *forwarder) answered(c *call, res dispatch.Result, late bool) int {
	a := said{topic: c.Row.Topic, uuid: c.Row.UUID, ok: res.Verdict == dispatch.OK, known: res.Verdict != dispatch.Unknown}
	switch {
	case a.ok:
	case late || res.Verdict != dispatch.Unknown && res.Verdict != dispatch.Unavailable:
		return -1
	case !f.dispatcher.Owns(c.Row.Assignment):
		return -1 // irrelevant
	case f.dispatcher.Published(c.Row):
		return repeated
	}
	f.answers = append(f.answers, a)
	return len(f.answers) - 1
}

// mayCharge reports whether only a few messages of the topic had failed without a success in between.
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
