package kafka

import (
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

// endInterval is the interval at which the end of a paused partition is read.
const endInterval = 5 * time.Second

// end tracks the end of a partition. The goroutine of the partition owns it.
type end struct {
	known       int64 // end of the partition in Kafka's last reply
	ends        chan int64
	requestedAt time.Time
	requesting  bool

	past chan int64 // offsets after transaction markers, at which messages may follow
	idle int64      // the watermark at the last tick
}

// requestEnd requests the end of a paused partition: sarama learns it only from fetches.
func (p *partition) requestEnd() {
	e := &p.end
	p.requestMarkers()
	if p.pause.Since.IsZero() || p.lastOffset == nil || p.stopped ||
		e.requesting || time.Since(e.requestedAt) < endInterval {
		return
	}
	e.requesting, e.requestedAt = true, time.Now()
	p.requesting.Go(func() {
		offset, err := p.lastOffset(p.claim.Topic(), p.claim.Partition(), sarama.OffsetNewest)
		if err != nil {
			p.logger.Debug("could not read the end of the partition", watermill.LogFields{"err": text.OfError(err)})
			offset = 0
		}
		e.ends <- offset
	})
}

// requestMarkers requests the offset of the next possible message if the remaining offsets hold none: the markers that
// end transactions have offsets but are not messages, and aborted messages are skipped. The offset after them is
// committed; otherwise the lag would never reach zero, and once retention deletes the markers the group would seem to
// have missed messages.
func (p *partition) requestMarkers() {
	e := &p.end
	at := p.behind()
	waits := e.idle == at && p.window.Undone() == 0 && p.lag() > 0
	e.idle = at
	if !waits || p.markers == nil || p.first || p.stopped || e.requesting || time.Since(e.requestedAt) < endInterval {
		return
	}
	e.requesting, e.requestedAt = true, time.Now()
	ctx := p.sess.Context()
	p.requesting.Go(func() {
		offset, err := p.markers(ctx, p.claim.Topic(), p.claim.Partition(), at)
		if err != nil {
			p.logger.Debug("could not read the offset that follows the last "+
				"message", watermill.LogFields{"err": text.OfError(err)})
		}
		e.past <- offset
	})
}

// skipped marks the offset that requestMarkers found: no unhandled message precedes it.
func (p *partition) skipped(offset int64) {
	p.end.requesting = false
	if offset > p.marked {
		p.marked = offset
		p.sess.MarkOffset(p.claim.Topic(), p.claim.Partition(), offset, "")
	}
}

// behind returns the offset of the oldest unfinished message, or else of the next message.
func (p *partition) behind() int64 {
	if p.window.Undone() > 0 {
		return p.window.Watermark()
	}
	return max(p.window.Watermark(), p.marked)
}

// setEnd records the end that Kafka reported; 0 = no reply.
func (e *end) setEnd(offset int64) {
	e.requesting, e.known = false, max(e.known, offset)
}

// lag is the number of offsets between the oldest unfinished message and the end.
func (p *partition) lag() int64 {
	return max(0, max(p.claim.HighWaterMarkOffset(), p.end.known)-max(p.behind(), 0))
}
