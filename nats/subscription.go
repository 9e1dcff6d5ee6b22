package nats

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/inbound"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

// subscription is one topic of a Subscriber.
type subscription struct {
	cfg       *SubscriberConfig
	topic     string
	durable   string
	logger    watermill.LoggerAdapter
	ctx       context.Context // ends with the subscription; the parent of the contexts of its messages
	deliverer *inbound.Deliverer[*natsgo.Msg]

	reports *inbound.Reports
	lines   trouble.RateLimit
	told    trouble.RetryLog
	stall   *stallDetector
}

func newSubscription(
	ctx context.Context, cfg *SubscriberConfig, topic string, logger watermill.LoggerAdapter,
) *subscription {
	durable := cfg.Consumer + "-" + durableName.Replace(topic)
	logger = logger.With(watermill.LogFields{"topic": topic, "consumer": durable})
	s := &subscription{
		cfg: cfg, topic: topic, durable: durable, logger: logger, ctx: ctx,
		reports: inbound.NewReports(cfg.Observers, logger),
		// Cause: NATS is unreachable, refuses the login, or lacks a stream or a suitable consumer.
		// Cure: fix the cause that the error names.
		told: trouble.RetryLog{Logger: logger, What: "reading from JetStream"},
	}
	s.deliverer = inbound.NewDeliverer(ctx, &core.Source{Blocked: s.reports.Blocked}, cfg.Key, cfg.Unmarshaler.Unmarshal)
	return s
}

// run reads until the context ends and then closes the channel. If NATS does not respond, or Key hangs, the reader ends
// in the background.
func (s *subscription) run() {
	defer s.reports.Stop()
	defer s.deliverer.Close()
	if !inbound.RunWithGrace(s.ctx, s.cfg.CloseTimeout+leaveTimeout, s.connect) {
		// Cause: the server does not respond, or Key hangs.
		// Cure: the inbox skips the duplicates.
		s.logger.Error("reading from JetStream did not end in time: a standby takes over after 4/3 of AckWait: "+
			"check the server, and whether Key hangs", context.DeadlineExceeded, nil)
	}
}

// connect repeats stay until it succeeds.
func (s *subscription) connect() {
	wait := core.Backoff{Initial: 200 * time.Millisecond, Max: 10 * time.Second}
	for failures := 1; s.ctx.Err() == nil; failures++ {
		err := s.stay(func() {
			failures = 0
			s.told.Report(nil)
		})
		if s.ctx.Err() != nil {
			return
		}
		s.told.Report(err)
		core.Pause(s.ctx, wait.Delay(max(failures, 1)))
	}
}

// stay keeps a connection until the context ends. It calls found each time it has found a consumer to read.
func (s *subscription) stay(found func()) error {
	conn, err := natsgo.Connect(s.cfg.URL, slices.Concat(logging(s.logger), s.cfg.connect())...)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	// Soon after AckWait, another process owns the consumer.
	s.stall = &stallDetector{conn: conn, logger: s.logger, lasts: trouble.StallDetector{Limit: s.cfg.AckWait}}
	var js jetstream.JetStream
	if s.cfg.Domain == "" {
		js, err = jetstream.New(conn)
	} else {
		js, err = jetstream.NewWithDomain(conn, s.cfg.Domain)
	}
	if err != nil {
		return err
	}
	wait := core.Backoff{Initial: 200 * time.Millisecond, Max: 10 * time.Second}
	for failures := 1; s.ctx.Err() == nil; failures++ {
		begun := time.Now()
		from, err := s.open(s.ctx, js)
		if s.stall.result(begun, err); err == nil {
			found()
			failures = 0
			err = newReader(s, conn, from).run()
		}
		if s.ctx.Err() != nil {
			break
		}
		s.told.Report(err)
		core.Pause(s.ctx, wait.Delay(max(failures, 1)))
	}
	return nil
}
