package forwarder

import (
	"context"
	"sync"
	"time"
)

// callContext is the context of one Publish call. Most publishers never use its channel, so the channel is made only
// when it is first needed.
type callContext struct {
	base context.Context // for its values; never ends

	mu    sync.Mutex
	inner context.Context // made at the first call of Done
	end   context.CancelCauseFunc
	cause error         // why it ended
	back  chan struct{} // made at the first call of recalled; closed = take the message back
	asked bool          // the message is to be taken back
}

// Deadline returns none: an in-process Pub/Sub may pass the context on to handlers that have more time.
func (c *callContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done also makes the context that derived contexts find by Value, so that they need no goroutine.
func (c *callContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.make()
	return c.inner.Done()
}

// make must be called with mu held.
func (c *callContext) make() {
	if c.inner == nil {
		c.inner, c.end = context.WithCancelCause(c.base)
		if c.cause != nil {
			c.end(c.cause)
		}
	}
}

func (c *callContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.cause {
	case nil:
		return nil
	case ErrPublishTimeout:
		return context.DeadlineExceeded
	}
	return context.Canceled
}

func (c *callContext) Value(key any) any {
	c.mu.Lock()
	inner := c.inner
	c.mu.Unlock()
	if inner != nil {
		return inner.Value(key)
	}
	return c.base.Value(key)
}

// over ends the context; only the first call counts. context.Cause returns the cause unless it is context.Canceled.
func (c *callContext) over(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return
	}
	if c.cause = cause; c.inner != nil {
		c.end(cause)
	} else if cause != context.Canceled {
		c.make()
	}
}

// recalled returns a channel that is closed when a message that no handler has received yet must be taken back.
func (c *callContext) recalled() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.back == nil {
		if c.back = make(chan struct{}); c.asked {
			close(c.back)
		}
	}
	return c.back
}

func (c *callContext) recall() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.asked && c.back != nil {
		close(c.back)
	}
	c.asked = true
}
