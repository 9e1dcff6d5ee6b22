package kafka

import (
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

// askEnd is how often Kafka is asked where a partition ends that is paused.
const askEnd = 5 * time.Second

// end is where a partition ends. The goroutine of the partition owns it.
type end struct {
	known   int64 // as Kafka last said when it was asked
	answers chan int64
	asked   time.Time
	asking  bool

	past chan int64 // where messages may follow, behind what a transaction left
	idle int64      // the watermark of the last tick
}

// ask has Kafka asked where a partition ends that is paused: sarama learns it only from what it fetches.
func (p *partition) ask() {
	e := &p.end
	p.askMarkers()
	if p.pause.Since.IsZero() || p.newest == nil || e.asking || time.Since(e.asked) < askEnd || p.stopped {
		return
	}
	e.asking, e.asked = true, time.Now()
	p.asking.Go(func() {
		offset, err := p.newest(p.claim.Topic(), p.claim.Partition(), sarama.OffsetNewest)
		if err != nil {
			p.logger.Debug("could not read the end of the partition", watermill.LogFields{"err": text.OfError(err)})
			offset = 0
		}
		e.answers <- offset // there is room
	})
}

// askMarkers has Kafka asked what follows the last message, if nothing comes of what is there: the markers with which
// transactions end have offsets and are no messages, nor is what was aborted. The offset behind them is committed, or
// the lag would stay, and once retention deletes the markers the group would seem to have missed messages.
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
		e.past <- offset // there is room
	})
}

// skipped marks what askMarkers found: there is no message before it that was not handled.
func (p *partition) skipped(offset int64) {
	p.end.asking = false
	if offset > p.marked {
		p.marked = offset
		p.sess.MarkOffset(p.claim.Topic(), p.claim.Partition(), offset, "")
	}
}

// behind is the offset of the oldest message that is not done, or where one may follow.
func (p *partition) behind() int64 {
	if p.window.Undone() > 0 {
		return p.window.Watermark()
	}
	return max(p.window.Watermark(), p.marked)
}

// answered takes what Kafka said; 0 = it did not answer.
func (e *end) answered(offset int64) {
	e.asking, e.known = false, max(e.known, offset)
}

// lag is how many offsets lie between the oldest message that is not done and the end.
func (p *partition) lag() int64 {
	return max(0, max(p.claim.HighWaterMarkOffset(), p.end.known)-max(p.behind(), 0))
}
