package forwarder

import (
	"context"
	"fmt"
	"slices"
	"time"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
)

// drain waits until a read that began after the call has found no work left; others is as in machine.DrainBegins.
func (e *engine) drain(ctx context.Context, others bool) error {
	var id int64
	done := make(chan error, 1)
	e.step(func(_ time.Time, m *machine.Machine) {
		id = m.DrainBegins(others)
		e.drains[id] = done
	})
	defer e.step(func(_ time.Time, m *machine.Machine) {
		m.DrainEnds(id)
		delete(e.drains, id)
	})
	e.wake()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-done:
		return err
	}
}

// errDrained returns the error of a drain: nil, or one that names the paused topics for which messages wait.
func errDrained(d machine.Drained) error {
	switch {
	case d.Closed:
		return outbox.ErrClosed
	case len(d.Paused) == 0:
		return nil
	}
	topics := slices.Sorted(slices.Values(d.Paused))
	return fmt.Errorf("forwarder: not drained: topics paused by an operator: %q: resume them with admin.Resume", topics)
}
