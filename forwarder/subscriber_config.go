package forwarder

import (
	"errors"
	"fmt"
	"time"

	outbox "github.com/millrace-go/watermill-outbox"
)

// SubscriberConfig configures a Subscriber. The zero value is ready for use. Where a field says nothing else it is that of
// Config with the same name.
type SubscriberConfig struct {
	// Relay says that the handlers which publish pass the messages on, to a broker for example: middleware.Outbox lets
	// through what they return, and middleware.Inbox does not note the message, because their publishing may fail and must be
	// repeated. Handlers without a publish topic are guarded all the same. Default: the messages are handled like any others,
	// and a handler that returns the message itself fails with middleware.ErrRelayed.
	Relay bool
	// AckTimeout is how long a delivery may take; after it the message counts as failed, its context ends, and it is
	// delivered again after its backoff. Default -1: for ever.
	AckTimeout time.Duration
	// CloseTimeout is how long the end of a subscription waits for the acks of what was delivered; default 5 s.
	CloseTimeout time.Duration

	Name            string
	Concurrency     int // deliveries without an ack
	ReadAhead       int
	ReadAheadBytes  int
	PollInterval    time.Duration
	DisableListen   bool
	QueryTimeout    time.Duration
	LeaseTTL        time.Duration
	Backoff         outbox.Backoff // after a nack
	MaxAttempts     int
	MinDeadAge      time.Duration
	DeadLetterTopic string // which a forwarder, or another subscription, must take
	BlockKeyOnDead  bool
	Retention       time.Duration // of what was acked
	InboxRetention  time.Duration
	CleanInterval   time.Duration
}

// config is that of the engine, with its defaults.
func (c SubscriberConfig) config() (Config, error) {
	cfg := Config{
		Name: c.Name, Concurrency: c.Concurrency, ReadAhead: c.ReadAhead, ReadAheadBytes: c.ReadAheadBytes, PollInterval: c.PollInterval,
		DisableListen: c.DisableListen, PublishTimeout: c.AckTimeout, QueryTimeout: c.QueryTimeout, LeaseTTL: c.LeaseTTL,
		CloseTimeout: c.CloseTimeout, Backoff: c.Backoff, MaxAttempts: c.MaxAttempts, MinDeadAge: c.MinDeadAge,
		DeadLetterTopic: c.DeadLetterTopic, BlockKeyOnDead: c.BlockKeyOnDead, Retention: c.Retention, InboxRetention: c.InboxRetention, CleanInterval: c.CleanInterval,
	}
	fill(&cfg.PublishTimeout, -1)
	fill(&cfg.CloseTimeout, 5*time.Second)
	cfg.setDefaults()
	var ackTimeout error
	if c.AckTimeout < -1 {
		ackTimeout = fmt.Errorf("SubscriberConfig.AckTimeout is %s: use -1 to wait for ever", c.AckTimeout)
		cfg.PublishTimeout = -1
	}
	return cfg, errors.Join(ackTimeout, cfg.validate("SubscriberConfig"))
}
