package forwarder

import (
	"context"
	"fmt"
	"slices"
	"time"

	outbox "github.com/millrace-go/watermill-outbox"
)

// drain is a call of Drain that waits.
type drain struct {
	after int64      // a read that began later counts
	done  chan error // capacity 1
}

// drain waits until a read that began after the call has found nothing left to do.
func (e *engine) drain(ctx context.Context) error {
	d := drain{done: make(chan error, 1)}
	e.step(func(time.Time) {
		d.after = e.reads
		e.drains = append(e.drains, d)
		if e.stopping {
			e.endDrains(e.reads+1, outbox.ErrClosed)
		}
	})
	defer e.step(func(time.Time) {
		e.drains = slices.DeleteFunc(e.drains, func(o drain) bool { return o.done == d.done })
	})
	e.wake()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-d.done:
		return err
	}
}

// errPaused says which topics an operator has paused that messages wait for; nil if there are none.
func errPaused(topics []string) error {
	if len(topics) == 0 {
		return nil
	}
	slices.Sort(topics)
	return fmt.Errorf("forwarder: not drained: topics paused by an operator: %q: resume them with admin.Resume", topics)
}

// endDrains answers those that began before a read. It is called under mu.
func (e *engine) endDrains(read int64, err error) {
	e.drains = slices.DeleteFunc(e.drains, func(d drain) bool {
		if d.after >= read {
			return false
		}
		d.done <- err
		return true
	})
}

// complete says whether all lanes that are ours to have are being read. It is called under mu.
func (e *engine) complete() bool {
	for _, l := range e.lanes {
		if l.state != reading {
			return false
		}
	}
	return e.share >= 0 && len(e.lanes) >= e.share
}
