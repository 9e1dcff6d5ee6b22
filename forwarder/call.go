package forwarder

import (
	"context"
	"sync"
	"time"
)

// call is a worker's publish that is under way, guarded by engine.mu.
type call struct {
	row      *row
	ctx      *callContext
	recalled chan struct{} // closed if a Subscriber is to take back what nobody has received; nil for a Forwarder
	recall   bool          // it is
	expired  bool          // it timed out: another worker took its place
	charged  bool          // and so the board was told
}

// end ends the context of the message.
func (c *call) end(err error) {
	if c.ctx != nil {
		c.ctx.end(err)
	}
}

// callContext is the context of one publish. It ends when the publish times out, or when nobody waits for it any more. There is
// one for each message, so what it needs to end is made when somebody asks for it.
type callContext struct {
	context.Context // for its values
	deadline        time.Time

	mu   sync.Mutex
	done chan struct{}
	err  error
}

func (c *callContext) Deadline() (time.Time, bool) { return c.deadline, !c.deadline.IsZero() }

func (c *callContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.err != nil {
			close(c.done)
		}
	}
	return c.done
}

func (c *callContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *callContext) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	if c.err = err; c.done != nil {
		close(c.done)
	}
}
