package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace-go/watermill-outbox/publisher/nats"
)

// pullSubscriber gives a Router what a durable pull consumer has. The topic is the name of the stream. It keeps no
// order among the messages that it delivers at once.
type pullSubscriber struct {
	js      jetstream.JetStream
	durable string        // name of the consumer
	ackWait time.Duration // of the consumer
	atOnce  int           // messages that are handled at once
	logger  watermill.LoggerAdapter

	running sync.WaitGroup
	closing chan struct{}
	once    sync.Once
}

var _ message.Subscriber = (*pullSubscriber)(nil)

// Subscribe delivers until ctx is over or Close is called.
func (s *pullSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	consumer, err := s.js.Consumer(ctx, topic, s.durable)
	if err != nil {
		return nil, err
	}
	in, err := consumer.Messages(jetstream.PullMaxMessages(s.atOnce)) // no more than can be begun soon
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	out := make(chan *message.Message)
	s.running.Go(func() {
		select {
		case <-s.closing:
		case <-ctx.Done():
		}
		cancel()
	})
	s.running.Go(func() {
		defer close(out)
		defer in.Stop()
		s.pull(ctx, in, out)
	})
	return out, nil
}

// pull returns when all that was delivered is acknowledged, or not.
func (s *pullSubscriber) pull(ctx context.Context, in jetstream.MessagesContext, out chan<- *message.Message) {
	var delivering sync.WaitGroup
	defer delivering.Wait()
	places := make(chan struct{}, s.atOnce)
	for {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return
		}
		msg, err := in.Next(jetstream.NextContext(ctx))
		if ctx.Err() != nil || errors.Is(err, jetstream.ErrMsgIteratorClosed) { // as when somebody has deleted the consumer
			return
		}
		if err != nil { // it goes on when the server is back
			s.logger.Error("could not pull from JetStream", err, nil)
			<-places
			continue
		}
		delivering.Go(func() {
			s.deliver(ctx, msg, out)
			<-places
		})
	}
}

// deliver answers for one message. What is not answered is delivered again after the consumer's AckWait.
func (s *pullSubscriber) deliver(ctx context.Context, in jetstream.Msg, out chan<- *message.Message) {
	msg, err := nats.Unmarshaler{}.Unmarshal(&natsgo.Msg{Subject: in.Subject(), Header: in.Headers(), Data: in.Data()})
	if err != nil {
		s.logger.Error("could not read a message", err, watermill.LogFields{"subject": in.Subject()})
		_ = in.NakWithDelay(time.Minute)
		return
	}
	msg.SetContext(ctx)
	select {
	case out <- msg:
	case <-ctx.Done():
		return
	}
	working := time.NewTicker(s.ackWait / 3)
	defer working.Stop()
	for {
		select {
		case <-msg.Acked():
			err = in.DoubleAck(context.WithoutCancel(ctx))
		case <-msg.Nacked():
			err = in.Nak() // at once: middleware.Outcomes has waited
		case <-working.C:
			_ = in.InProgress() // the handler needs longer, and nobody else is to have the message
			continue
		}
		if err != nil {
			s.logger.Error("could not acknowledge: the message is redelivered", err,
				watermill.LogFields{"message_uuid": msg.UUID})
		}
		return
	}
}

// Close returns when all that was delivered has an answer.
func (s *pullSubscriber) Close() error {
	s.once.Do(func() { close(s.closing) })
	s.running.Wait()
	return nil
}
