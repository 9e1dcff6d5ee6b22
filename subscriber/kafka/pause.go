package kafka

import (
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/inbound"
	"github.com/millrace-go/watermill-outbox/observe"
)

// regulate pauses the partition when enough is in memory, and has it read on when half of that is done. The bytes are
// those of all partitions together. One that has nothing in memory is always read, so that none starves.
func (p *partition) regulate() {
	switch {
	case p.stopped:
	case p.paused.IsZero() && (p.window.Full() || p.budget.spent() && p.window.Undone() > 0):
		p.paused = time.Now()
		p.group.Pause(p.here)
	case !p.paused.IsZero() && p.window.HalfEmpty() && (p.budget.half() || p.window.Undone() == 0):
		p.paused = time.Time{}
		p.group.Resume(p.here)
	}
}

// reason says why the partition is paused.
func (p *partition) reason() observe.PauseReason {
	switch oldest := p.window.Oldest(); {
	case oldest != nil && oldest.Failures > 0:
		return observe.PausedByBlockedKey
	case inbound.Hung(p.paused, p.settled, time.Now()):
		return observe.PausedByHungHandlers
	case p.window.HalfEmpty():
		return observe.PausedByBytes
	}
	return observe.PausedByHandlers
}

// tellPaused logs, once a minute, that a message which fails keeps the partition from being read, or handlers that
// never return. That they are slower than Kafka is no error.
func (p *partition) tellPaused() {
	if p.paused.IsZero() {
		return
	}
	reason := p.reason()
	blocked, hung := reason == observe.PausedByBlockedKey, reason == observe.PausedByHungHandlers
	switch {
	case !blocked && !hung, !p.lines.Due(fmt.Sprint("paused ", p.claim.Partition())):
	case blocked:
		p.tellBlocked()
	case hung:
		p.tellHung()
	}
}

func (p *partition) tellHung() {
	// Cause: handlers wait for something without a time-out, and take all places of the subscription.
	// Cure: find what they wait for in a goroutine dump of the process, and bound that by the message's context.
	p.logger.Error("partition is paused, and no handler has returned for five minutes: "+
		"bound what handlers wait for, and restart the process", inbound.ErrHung, watermill.LogFields{
		"handlers": len(p.places), "paused_since": p.paused, "waiting": p.window.Undone(),
	})
}

func (p *partition) tellBlocked() {
	oldest := p.window.Oldest()
	_, since := p.window.Failing()
	// Cause: the message at that offset keeps failing, so nothing above it can be committed.
	// Cure: fix what the inbox row of the message names as its last error (outboxctl messages list), or raise MaxAhead.
	p.logger.Error("partition is paused: MaxAhead messages or MaxBytes are read beyond one that keeps failing: "+
		"fix its handler, or let it declare the message poison", fmt.Errorf("%d failures in a row", oldest.Failures),
		watermill.LogFields{
			"offset": oldest.Pos, "failing_since": since, "waiting": p.window.Undone(),
		})
}
