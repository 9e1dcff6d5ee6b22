package forwarder

import (
	"time"
)

// topic is a topic that is paused because its broker could not be reached. When the pause is over one
// trial message is sent: if the broker answers it, the topic is open again, if not, the next pause is longer.
// The keys whose next row is on the topic are blocked meanwhile; other topics go on.
type topic struct {
	name     string
	until    time.Time
	failures int
	since    time.Time // the first failure
	said     time.Time // when it was reported last
	err      error     // of the last failure
	trial    *row      // being sent
	wanted   bool      // a trial is being read
	blocked  map[*key]struct{}
}

func (b *board) blockTopic(k *key, t *topic) {
	if k.topic == t {
		return
	}
	b.unblockTopic(k)
	k.topic = t
	t.blocked[k] = struct{}{}
}

func (b *board) unblockTopic(k *key) {
	if k.topic != nil {
		delete(k.topic.blocked, k)
		k.topic = nil
	}
}

// pause closes the topic of a row that could not be sent, or closes it for longer if the row was its
// trial. Rows that were sent before the topic was paused change nothing.
func (b *board) pause(r *row, err error, now time.Time) *topic {
	t := b.topics[r.topic]
	if t == nil {
		t = &topic{name: r.topic, since: now, blocked: map[*key]struct{}{}}
		b.topics[r.topic] = t
	} else if t.trial != r {
		return t
	}
	t.trial, t.err = nil, err
	t.failures++
	wait := b.cfg.PauseBackoff.Delay(t.failures)
	t.until = now.Add(wait)
	say := now.Sub(t.said) >= reportEvery
	if say {
		t.said = now
	}
	b.observe.paused(t.name, t.failures, wait, err, say)
	return t
}

// reopen ends the pause of a topic. Its keys are released a few at a time, as there is room.
func (b *board) reopen(t *topic) {
	delete(b.topics, t.name)
	t.trial = nil
	for k := range t.blocked {
		k.topic = nil
		b.advance(k)
	}
	clear(t.blocked)
	b.observe.resumed(t.name)
}

// trialOf picks the message that is to try whether a topic works again: the first unsettled one of a key
// that the topic blocks. Without any such key it opens the topic: the next message that comes is the trial.
func (b *board) trialOf(t *topic, now time.Time) (k *key, id int64, ok bool) {
	for k := range t.blocked {
		switch {
		case k.lane.draining || k.publishing:
		case len(k.heads) == 0 && len(k.skipped) > 0:
			return k, k.skipped[0], true
		default:
			b.unblockTopic(k)
			b.advance(k)
		}
	}
	if len(t.blocked) == 0 {
		b.reopen(t)
	} else {
		t.until = now.Add(lookAgain)
	}
	return nil, 0, false
}
