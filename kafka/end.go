package kafka

import (
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

// askEnd is the interval at which the end of a paused partition is read.
const askEnd = 5 * time.Second

// end tracks the end of a partition. The goroutine of the partition owns it.
type end struct {
	known   int64 // Kafka's last reply
	answers chan int64
	asked   time.Time
	asking  bool

	past chan int64 // offsets after the markers of a transaction, at which messages may follow
	idle int64      // the watermark of the last tick
}

// ask requests the end of a paused partition: sarama learns it only from fetches.
func (p *partition) ask() {
	e := &p.end
	p.askMarkers()
	if p.pause.Since.IsZero() || p.lastOffset == nil || e.asking || time.Since(e.asked) < askEnd || p.stopped {
		return
	}
	e.asking, e.asked = true, time.Now()
	p.asking.Go(func() {
		offset, err := p.lastOffset(p.claim.Topic(), p.claim.Partition(), sarama.OffsetNewest)
		if err != nil {
			p.logger.Debug("could not read the end of the partition", watermill.LogFields{"err": text.OfError(err)})
			offset = 0
		}
		e.answers <- offset // the channel has room
	})
}

// askMarkers requests the offset after the last message if the existing offsets hold no message: the markers that end
// transactions have offsets but are not messages, and aborted messages are skipped. The offset after them is committed;
// otherwise the lag would stay, and once retention deletes the markers the group would seem to have missed messages.
func (p *partition) askMarkers() {
	e := &p.end
	at := p.behind()
	waits := e.idle == at && p.window.Undone() == 0 && p.lag() > 0
	e.idle = at
	if !waits || p.markers == nil || p.first || p.stopped || e.asking || time.Since(e.asked) < askEnd {
		return
	}
	e.asking, e.asked = true, time.Now()
	ctx := p.sess.Context()
	p.asking.Go(func() {
		offset, err := p.markers(ctx, p.claim.Topic(), p.claim.Partition(), at)
		if err != nil {
			p.logger.Debug("could not read the offset that follows the last "+
				"message", watermill.LogFields{"err": text.OfError(err)})
		}
		e.past <- offset // the channel has room
	})
}

// skipped marks the offset that askMarkers found: no unhandled message lies before it.
func (p *partition) skipped(offset int64) {
	p.end.asking = false
	if offset > p.marked {
		p.marked = offset
		p.sess.MarkOffset(p.claim.Topic(), p.claim.Partition(), offset, "")
	}
}

// behind returns the offset of the oldest unfinished message, or else the offset of the next message.
func (p *partition) behind() int64 {
	if p.window.Undone() > 0 {
		return p.window.Watermark()
	}
	return max(p.window.Watermark(), p.marked)
}

// answered records the end that Kafka reported; 0 = no reply.
func (e *end) answered(offset int64) {
	e.asking, e.known = false, max(e.known, offset)
}

// lag is the number of offsets between the oldest unfinished message and the end.
func (p *partition) lag() int64 {
	return max(0, max(p.claim.HighWaterMarkOffset(), p.end.known)-max(p.behind(), 0))
}
