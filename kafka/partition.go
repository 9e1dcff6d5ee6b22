package kafka

import (
	"context"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/inbound"
	"github.com/millrace-go/watermill-outbox/internal/keyed"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

type item = keyed.Item[record]

// partition is a partition claimed by this process until it is revoked. One goroutine owns it.
type partition struct {
	*member
	sess   sarama.ConsumerGroupSession
	claim  sarama.ConsumerGroupClaim
	here   map[string][]int32
	logger watermill.LoggerAdapter

	window  *keyed.Window[record]
	results chan result
	running int   // deliveries in flight
	marked  int64 // the last watermark marked with sarama
	first   bool  // the first offset is still unknown, so nothing may be marked
	from    int64 // the first offset, if the claim did not name it
	retry   bool  // has a permit of subscription.retries for its next delivery
	pause   inbound.Pause
	freed   chan struct{}
	before  chan int64 // the committed offset, requested because reading did not begin at it
	end     end

	stopping  chan struct{} // closed when nothing more may be delivered
	abandoned chan struct{} // closed when acks are no longer awaited
	stopped   bool
	grace     <-chan time.Time
	graceEnd  time.Time
}

func newPartition(m *member, sess sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) *partition {
	initial := claim.InitialOffset()
	return &partition{
		member: m, sess: sess, claim: claim,
		here:    map[string][]int32{claim.Topic(): {claim.Partition()}},
		logger:  m.logger.With(watermill.LogFields{"partition": claim.Partition()}),
		window:  keyed.New[record](keyed.Limits{Records: m.cfg.MaxAhead}, initial),
		results: make(chan result), // unbuffered: a result is settled once it is sent
		marked:  initial, first: initial < 0,
		freed:    m.budget.join(),
		before:   make(chan int64),
		end:      end{ends: make(chan int64, 1), past: make(chan int64, 1), idle: -1},
		stopping: make(chan struct{}), abandoned: make(chan struct{}),
	}
}

// run returns when the partition is revoked and its deliveries have ended or are abandoned.
func (p *partition) run() {
	p.group.Resume(p.here) // sarama remembers a pause across rebalances
	if p.first && p.committed != nil {
		p.requesting.Go(p.requestCommitted)
	}
	defer p.leave()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	due := time.NewTimer(time.Hour)
	defer due.Stop()
	messages, ended, closing := p.claim.Messages(), p.sess.Context().Done(), p.subscription.ctx.Done()
	for !p.stopped || p.running > 0 {
		place, retry := p.wants()
		if next, held := p.window.Due(); held && !p.stopped {
			due.Reset(time.Until(next))
		}
		select {
		case msg, open := <-messages:
			switch {
			case !open:
				messages = nil
				p.stop()
			case !p.stopped:
				p.add(msg)
			}
		case place <- struct{}{}:
			p.start()
		case retry <- struct{}{}:
			p.retry = true
		case r := <-p.results:
			p.settle(r)
		case offset := <-p.before:
			p.beginning(offset)
		case offset := <-p.end.ends:
			p.end.setEnd(offset)
		case offset := <-p.end.past:
			p.skipped(offset)
		case <-due.C:
		case <-p.freed:
			p.regulate()
		case <-ticker.C:
			p.regulate()
			p.requestEnd()
			p.report(true)
		case <-ended:
			ended = nil
			p.stop()
		case <-closing:
			closing = nil
			p.stop()
		case <-p.grace:
			// Cause: handlers were too slow.
			// Cure: an inbox skips the duplicates.
			p.logger.Error("handlers did not end in time: their messages are delivered again: "+
				"raise RevokeTimeout or CloseTimeout, or make them faster", context.DeadlineExceeded,
				watermill.LogFields{"handlers": p.running})
			return
		}
	}
}

// wants returns the channels that provide a slot and, for a message that failed before, a permit; nil if not needed.
func (p *partition) wants() (place, retry chan<- struct{}) {
	if p.stopped {
		return nil, nil
	}
	p.window.Wake(time.Now())
	fresh, again := p.window.Ready()
	if p.retry && !again {
		<-p.retries
		p.retry = false
	}
	if again && !p.retry {
		retry = p.retries
	}
	if fresh || p.retry {
		place = p.places
	}
	return place, retry
}

// add accepts a message even if memory is full: the partition must be read to notice a revocation.
func (p *partition) add(msg *sarama.ConsumerMessage) {
	if p.first {
		p.first, p.from = false, msg.Offset
		// After a crash, handling continues with this message. Reset first, because sarama ignores marks below the old
		// offset.
		p.sess.ResetOffset(msg.Topic, msg.Partition, msg.Offset, "")
		p.sess.MarkOffset(msg.Topic, msg.Partition, msg.Offset, "")
		p.marked = msg.Offset
	}
	rec := record{msg: msg}
	key, err := p.deliverer.KeyOf(msg)
	if err != nil {
		key, rec.unkeyed = msg.Key, true
	}
	it := p.window.Add(msg.Offset, key, sizeOf(msg), rec)
	if it == nil {
		return
	}
	if it.Blocked() {
		it.Value.keep()
	}
	p.budget.take(int64(sizeOf(msg)))
	p.regulate()
}

// start delivers the oldest ready message in the slot obtained.
func (p *partition) start() {
	it := p.window.Start(p.retry)
	again := it.Failures > 0
	if again {
		p.retry = false
	}
	p.running++
	p.pause.Active = time.Now()
	go p.deliver(it, it.Value, again)
}

// settle records the result of a delivery and frees its slot only then, because the next message of the key may be the
// oldest ready one.
func (p *partition) settle(r result) {
	p.running--
	p.pause.Active = time.Now()
	defer p.free(r.again)
	switch r.Verdict {
	case inbound.Acked:
		before := p.window.Bytes()
		p.window.Done(r.item)
		p.budget.give(before - p.window.Bytes())
		p.mark()
		p.regulate()
	case inbound.Nacked:
		r.item.Value.cause = r.Cause
		p.block(r.item, r.Later)
	}
}

// block blocks the key of a failed message.
func (p *partition) block(it *item, later time.Duration) {
	it.Value.keep()
	if it.Failures == 0 {
		it.Behind(func(behind *item) { behind.Value.keep() })
	}
	now := time.Now()
	if later == 0 {
		later = core.Backoff(p.cfg.Backoff).Delay(it.Failures + 1)
	}
	p.window.Hold(it, now, now.Add(later))
}

func (p *partition) mark() {
	if watermark := p.window.Watermark(); watermark > p.marked {
		p.marked = watermark
		p.sess.MarkOffset(p.claim.Topic(), p.claim.Partition(), watermark, "")
	}
}

// stop waits for deliveries in flight and starts no new ones. The subscription may end before RevokeTimeout has passed.
func (p *partition) stop() {
	wait := p.cfg.RevokeTimeout
	if p.subscription.ctx.Err() != nil {
		wait = p.cfg.CloseTimeout
	}
	if end := time.Now().Add(wait); !p.stopped || end.Before(p.graceEnd) {
		p.grace, p.graceEnd = time.After(wait), end
	}
	if !p.stopped {
		p.stopped = true
		close(p.stopping)
	}
}

// leave releases everything that the partition holds.
func (p *partition) leave() {
	close(p.abandoned)
	if p.retry {
		<-p.retries
	}
	p.budget.leave(p.freed)
	p.budget.give(p.window.Bytes())
	p.report(false)
	go func() { // tracers wait for the last message to be read
		for range p.claim.Messages() {
		}
	}()
}

func (p *partition) requestCommitted() {
	offset, err := p.committed(p.claim.Topic(), p.claim.Partition())
	if err != nil {
		p.logger.Debug("could not read the committed offset", watermill.LogFields{"err": text.OfError(err)})
		return
	}
	select {
	case p.before <- offset:
	case <-p.abandoned:
		p.beginning(offset)
	}
}

// beginning logs an error if the group had committed an offset before this claim. This claim itself may have committed
// any offset from the first that it read to the last that it marked.
func (p *partition) beginning(offset int64) {
	if offset < 0 || !p.first && p.from <= offset && offset <= p.marked {
		return
	}
	// Cause: the group was away longer than the topic's retention.
	// Cure: raise the retention; ask the producer to send missing messages again.
	p.logger.Error("committed offset is out of range: messages were deleted before they were handled, "+
		"or the topic was recreated: the partition is read from Consumer.Offsets.Initial", sarama.ErrOffsetOutOfRange,
		watermill.LogFields{"offset": offset})
}
