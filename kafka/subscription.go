package kafka

import (
	"context"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/inbound"
	"github.com/millrace-go/watermill-outbox/internal/keyed"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

const (
	// leaveTimeout is how long a closing subscription, after its handlers have ended, waits to commit and to leave the
	// group.
	leaveTimeout = 5 * time.Second
	// After a session shorter than briefSession the next one is delayed, because an unreadable partition ends each
	// session.
	briefSession = time.Second
)

// subscription is one topic of a Subscriber, with the state that its partitions share.
type subscription struct {
	cfg       *SubscriberConfig
	settings  *sarama.Config
	topic     string
	logger    watermill.LoggerAdapter
	ctx       context.Context // ends with the subscription; the parent of the contexts of its messages
	deliverer *inbound.Deliverer[*sarama.ConsumerMessage]

	places  chan struct{} // one slot per message delivered and not acked
	retries chan struct{} // permits for deliveries of messages that failed before
	budget  *budget
	reports *inbound.Reports
	lines   trouble.RateLimit
}

func newSubscription(
	ctx context.Context, cfg *SubscriberConfig, settings *sarama.Config, topic string, logger watermill.LoggerAdapter,
) *subscription {
	logger = logger.With(watermill.LogFields{"topic": topic, "consumer_group": cfg.ConsumerGroup})
	s := &subscription{
		cfg: cfg, settings: settings, topic: topic, logger: logger, ctx: ctx,
		places: make(chan struct{}, cfg.Concurrency), retries: make(chan struct{}, keyed.Retries(cfg.Concurrency)),
		budget: newBudget(cfg.MaxBytes), reports: inbound.NewReports(cfg.Observers, logger),
	}
	unmarshaler := cfg.Unmarshaler
	if _, ours := unmarshaler.(Unmarshaler); !ours { // each must decode only once
		unmarshaler = Unmarshaler{Unmarshaler: unmarshaler}
	}
	s.deliverer = inbound.NewDeliverer(ctx, &core.Source{Blocked: s.reports.Blocked}, cfg.Key, unmarshaler.Unmarshal)
	return s
}

// run reads until the context ends and then closes the channel. If Kafka does not respond, the client ends in the
// background.
func (s *subscription) run() {
	defer s.reports.Stop()
	defer s.deliverer.Close()
	if !inbound.RunWithGrace(s.ctx, s.cfg.CloseTimeout+leaveTimeout, s.stay) {
		// Cause: the broker does not respond, or a rebalance.
		// Cure: the inbox skips the duplicates.
		s.logger.Error("kafka did not respond at the end of the subscription: its partitions are reassigned only "+
			"after Consumer.Group.Session.Timeout", context.DeadlineExceeded, nil)
	}
}

// stay rejoins the group whenever it has left it.
func (s *subscription) stay() {
	wait := core.Backoff{Initial: time.Second, Max: 30 * time.Second}
	// Cause: Kafka is unreachable, refuses the login, or lacks the topic.
	// Cure: fix the cause that the error names.
	calls := trouble.RetryLog{Logger: s.logger, What: "reading from kafka"}
	for failures := 1; s.ctx.Err() == nil; failures++ {
		err := s.join(func() {
			failures = 0
			calls.Report(nil)
		})
		if s.ctx.Err() != nil {
			return
		}
		calls.Report(err)
		core.Pause(s.ctx, wait.Delay(max(failures, 1)))
	}
}

// join is a member of the group until the context ends or an error occurs. It calls joined at the start of each
// session.
func (s *subscription) join(joined func()) error {
	client, err := sarama.NewClient(s.cfg.Brokers, s.settings)
	if err != nil {
		return err
	}
	m := &member{
		subscription: s, joined: joined, committed: committedOffset(client, s.cfg.ConsumerGroup),
		lastOffset: client.GetOffset,
	}
	m.markers = func(ctx context.Context, topic string, partition int32, from int64) (int64, error) {
		r := partitionReader{client: client, topic: topic, partition: partition}
		return r.afterMarkers(ctx, from, s.settings.Consumer.IsolationLevel)
	}
	defer m.requesting.Wait()
	defer func() { _ = client.Close() }() // pending requests end with an error
	group, err := sarama.NewConsumerGroupFromClient(s.cfg.ConsumerGroup, client)
	if err != nil {
		return err
	}
	var calls sync.WaitGroup
	calls.Go(func() {
		for err := range group.Errors() {
			s.logError(err)
		}
	})
	defer func() {
		if err := group.Close(); err != nil {
			s.logger.Debug("leaving the consumer group failed", watermill.LogFields{"err": err.Error()})
		}
		calls.Wait()
	}()
	m.group = group
	var handler sarama.ConsumerGroupHandler = m
	if s.cfg.Tracer != nil {
		handler = s.cfg.Tracer.WrapConsumerGroupHandler(handler)
	}
	wait := core.Backoff{Initial: 100 * time.Millisecond, Max: 5 * time.Second}
	for brief := 0; s.ctx.Err() == nil; {
		begun := time.Now()
		if err := group.Consume(s.ctx, []string{s.topic}, handler); err != nil {
			return err
		}
		if brief++; time.Since(begun) >= briefSession {
			brief = 0
		}
		if brief > 3 {
			core.Pause(s.ctx, wait.Delay(brief-3))
		}
	}
	return nil
}
