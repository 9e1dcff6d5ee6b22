package kafka

import (
	"fmt"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/inbound"
)

// result is the outcome of a delivery.
type result struct {
	inbound.Outcome
	item  *item
	again bool // it had failed before
}

// deliver delivers one message and waits for its ack.
func (p *partition) deliver(it *item, rec record, again bool) {
	r := result{Outcome: p.hand(rec, p.logger, p.stopping, p.abandoned), item: it, again: again}
	select {
	case p.results <- r:
	case <-p.abandoned:
		p.free(again)
	}
}

// free releases a slot, and the permit of a message that failed before.
func (p *partition) free(again bool) {
	<-p.places
	if again {
		<-p.retries
	}
}

// hand delivers a new copy of the message each time.
func (s *subscription) hand(
	rec record, logger watermill.LoggerAdapter, stopping, abandoned <-chan struct{},
) inbound.Outcome {
	copied := cloned(rec.msg)
	return s.deliverer.Deliver(inbound.Delivery[*sarama.ConsumerMessage]{
		Record: copied, Unkeyed: rec.unkeyed, Context: recordContext{s.ctx, copied}, Logger: logger,
		From:     core.Consumed{Topic: copied.Topic, Position: fmt.Sprint(copied.Partition, "/", copied.Offset)},
		Position: watermill.LogFields{"offset": copied.Offset}, Stopping: stopping, Abandoned: abandoned,
	})
}
