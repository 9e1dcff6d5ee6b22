package forwarder

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
)

// prepare checks the schema and registers the forwarder. If it fails, nothing has to be undone.
func (e *engine) prepare(ctx context.Context) error {
	checkCtx, cancel := context.WithTimeout(ctx, 3*e.cfg.QueryTimeout) // for several statements
	defer cancel()
	if err := e.cfg.check(checkCtx, (*outbox.DB)(e.db)); err != nil {
		return err
	}
	if err := e.prepareSettling(ctx); err != nil {
		return err
	}
	if err := e.readOperatorPauses(ctx); err != nil { // before anything is read
		return err
	}
	return e.keeper.register(ctx)
}

// run works until ctx ends, then stops in order: it reads and sends nothing new, waits for publishes in flight and
// settles them, and releases the lanes.
func (e *engine) run(ctx context.Context) error {
	e.keeper.q = e.db
	if !e.pooled {
		lease, closeLease, err := e.db.Dedicated(ctx)
		if err != nil {
			return fmt.Errorf("open a connection for the lease: %w", err)
		}
		defer closeLease()
		e.keeper.q = lease
	}
	e.lapse = time.AfterFunc(time.Hour, e.recall) // the keeper sets it
	defer e.lapse.Stop()
	stopWake := e.db.OnCommit(e.notified)
	defer stopWake()

	background, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBackground()
	settling, stopSettling := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSettling()

	var front, back, settler sync.WaitGroup
	front.Go(e.labelled(ctx, "reader", e.read))
	front.Go(e.labelled(ctx, "maintainer", e.maintain))
	front.Go(e.labelled(ctx, "operator", e.watchPauses))
	if !e.cfg.DisableListen {
		front.Go(e.labelled(ctx, "listener", e.listen))
	}
	back.Go(e.labelled(background, "keeper", e.keeper.keep))
	back.Go(e.labelled(background, "timer", e.tick))
	settler.Go(e.labelled(settling, "settler", e.runSettler))

	<-ctx.Done()
	e.step(func(now time.Time, m *machine.Machine) { m.Stop(now) })
	front.Wait()
	signal(e.leaseNow)
	left := e.waitForPublishes()
	stopSettling()
	settler.Wait() // it settles the remaining results before it returns
	stopBackground()
	back.Wait()
	e.keeper.leave()
	if left > 0 {
		// Cause: publishes took longer than CloseTimeout.
		// Cure: raise CloseTimeout above PublishTimeout; inboxes skip the duplicates.
		e.logger.Error("stopped during publishes: those messages are published again",
			context.DeadlineExceeded, watermill.LogFields{"messages": left})
	}
	return nil
}

// waitForPublishes returns how many publishes did not end in time.
func (e *engine) waitForPublishes() int {
	done := make(chan struct{})
	go func() {
		e.publishing.Wait()
		close(done)
	}()
	timer := time.NewTimer(e.cfg.CloseTimeout)
	defer timer.Stop()
	select {
	case <-done:
		return 0
	case <-timer.C:
	}
	return e.giveUp()
}

// tick is the goroutine of the single timer for all calls.
func (e *engine) tick(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-e.tickNow:
		}
		e.step(func(now time.Time, m *machine.Machine) { timer.Reset(m.Tick(now)) })
	}
}
