package queue

import (
	"context"
	"slices"

	outbox "github.com/millrace-go/watermill-outbox"
)

// drain is one waiting call of Drain.
type drain struct {
	done chan error // capacity 1
}

func (d *drain) end(err error) {
	select {
	case d.done <- err:
	default:
	}
}

// drain waits until a poll that began after the call, while no message was being handled, finds nothing.
func (l *loop) drain(ctx context.Context) error {
	d := &drain{done: make(chan error, 1)}
	l.step(func() {
		l.drains = append(l.drains, d)
		if l.stopping {
			d.end(outbox.ErrClosed)
		}
	})
	defer l.step(func() { l.drains = slices.DeleteFunc(l.drains, func(o *drain) bool { return o == d }) })
	l.wake()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-d.done:
		return err
	}
}

// drained reports the result of a poll to the drains for which it counts. mu must be held.
func (l *loop) drained(counts []*drain, empty bool) {
	for _, d := range counts {
		if empty {
			d.end(nil)
		}
	}
}
