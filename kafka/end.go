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
}

// ask has Kafka asked where a partition ends that is paused: sarama learns it only from what it fetches.
func (p *partition) ask() {
	e := &p.end
	if p.pause.Since.IsZero() || p.newest == nil || e.asking || time.Since(e.asked) < askEnd || p.stopped {
		return
	}
	e.asking, e.asked = true, time.Now()
	p.asking.Go(func() {
		offset, err := p.newest(p.claim.Topic(), p.claim.Partition(), sarama.OffsetNewest)
		if err != nil {
			p.logger.Debug("could not ask for the end of the partition", watermill.LogFields{"err": text.OfError(err)})
			offset = 0
		}
		e.answers <- offset // there is room
	})
}

// answered takes what Kafka said; 0 = it did not answer.
func (e *end) answered(offset int64) {
	e.asking, e.known = false, max(e.known, offset)
}

// lag is how many offsets lie between the oldest message that is not done and the end.
func (p *partition) lag() int64 {
	return max(0, max(p.claim.HighWaterMarkOffset(), p.end.known)-max(p.window.Watermark(), 0))
}
