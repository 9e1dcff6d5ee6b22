package nats

import (
	"time"

	"github.com/millrace-go/watermill-outbox/internal/inbound"
	"github.com/millrace-go/watermill-outbox/internal/meter"
)

func (r *reader) state() meter.PartitionState {
	return meter.PartitionState{Group: r.durable, Topic: r.topic}
}

// reportGone reports that this process does not own the consumer.
func (r *reader) reportGone() { r.reports.Post(r.state()) }

// report passes the state of the consumer to observers, if this process owns it.
func (r *reader) report() {
	t := r.term
	if t == nil {
		return
	}
	t.regulate()
	state := r.state()
	state.Owned, state.Lag = true, int64(r.behind) //nolint:gosec // a stream has fewer
	full := t.window.Records() >= t.cfg.MaxAhead
	r.reports.Post(inbound.Describe(state, t.window, record.lastError, t.running, t.pause, full, "stream_seq", &t.lines,
		t.logger))
}

// regulate records since when nothing is read, or handlers hang. The server enforces the limit on messages.
func (t *term) regulate() {
	limit := int64(t.cfg.MaxBytes)
	if t.exhausted {
		limit /= 2
	}
	t.exhausted = t.window.Bytes() >= limit
	switch full := t.exhausted || t.window.Records() >= t.cfg.MaxAhead; {
	case inbound.Stalled(t.pause, t.window, t.running):
		if t.pause.Since.IsZero() {
			t.pause.Since = t.pause.Active
		}
	case !full:
		t.pause.Since = time.Time{}
	case t.pause.Since.IsZero():
		t.pause.Since = time.Now()
	}
}
