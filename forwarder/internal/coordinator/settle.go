package coordinator

import (
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

// Results returns results to be settled, up to a limit; each is handed out once.
func (c *Coordinator) Results(most int) (published []*dispatch.Row, failed []dispatch.Failure) {
	return c.dispatcher.Results(most)
}

// Incarnation returns the incarnation of server and sequence of the last read, and the value of the sequence then.
func (c *Coordinator) Incarnation() (incarnation string, seq int64) { return c.cursors.Incarnation() }

// BelowOpen returns the incarnation of the last read, and an id below every message whose transaction had not ended by
// then.
func (c *Coordinator) BelowOpen() (incarnation string, id int64) {
	incarnation, _ = c.cursors.Incarnation()
	return incarnation, c.cursors.BelowOpen()
}

// Settled applies results that are now in the database. A failure that was fenced ends its assignment: the lane has
// another owner.
func (c *Coordinator) Settled(now time.Time, published []*dispatch.Row, failed []dispatch.Outcome) {
	c.dispatcher.Settled(now, published, failed)
	for _, o := range failed {
		if t := o.Row.Assignment; o.Kind == dispatch.Fenced && c.lanes[t.Lane].Epoch == t.Epoch {
			c.lose([]dispatch.Assignment{t})
			c.effects.Wake |= WakeRebalancer
		}
	}
	if len(c.drains) > 0 {
		c.reads.dirty = true
		c.effects.Wake |= WakeReader
	}
}

// Unsettled drops results that were given up at the end.
func (c *Coordinator) Unsettled(published []*dispatch.Row, failed []dispatch.Failure) {
	c.dispatcher.Unsettled(published, failed)
}
