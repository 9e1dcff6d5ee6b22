package forwarder

import (
	"errors"
	"fmt"
	"time"

	outbox "github.com/millrace-go/watermill-outbox"
)

// SubscriberConfig configures a Subscriber. The zero value is ready for use. Where a field says nothing it is that of
// Config with the same name. It has fields of its own, so that what only a Forwarder can use cannot be set.
type SubscriberConfig struct {
	// Relay says that the handlers which publish pass the messages on, to a broker for example: middleware.Outbox
	// lets through what they return, and middleware.Inbox does not note the message, because their publishing may
	// fail and must be repeated. Handlers without a publish topic are guarded all the same. Default: the messages are
	// handled like any others, and a handler that returns the message itself fails with middleware.ErrRelayed.
	Relay bool
	// AckTimeout is how long a delivery may take; after it the message counts as failed, its context ends, and it is
	// delivered again after its backoff. Default -1: for ever.
	AckTimeout time.Duration
	// Concurrency is how many messages are delivered and not acked; default 64. Messages of one key are never
	// delivered at once.
	Concurrency int
	// CloseTimeout is how long the end of a subscription waits for the acks of what was delivered; default 5 s.
	CloseTimeout time.Duration
	// Backoff is how long a message waits after a nack for its next delivery; default 1 s doubling to 5 min.
	Backoff outbox.Backoff
	// DeadLetterTopic is that of Config. Its letters need a Forwarder, or another subscription, that takes them.
	DeadLetterTopic string

	Name           string
	ReadAhead      int
	ReadAheadBytes int
	PollInterval   time.Duration
	DisableListen  bool
	QueryTimeout   time.Duration
	LeaseTTL       time.Duration
	MaxAttempts    int
	MinDeadAge     time.Duration
	BlockKeyOnDead bool
	Retention      time.Duration
	InboxRetention time.Duration
	CleanInterval  time.Duration
}

// config is that of the engine, with its defaults.
func (c SubscriberConfig) config() (Config, error) {
	cfg := Config{
		Concurrency: c.Concurrency, CloseTimeout: c.CloseTimeout, Backoff: c.Backoff, DeadLetterTopic: c.DeadLetterTopic,
		Name: c.Name, ReadAhead: c.ReadAhead, ReadAheadBytes: c.ReadAheadBytes, PollInterval: c.PollInterval,
		DisableListen: c.DisableListen,
		QueryTimeout:  c.QueryTimeout, LeaseTTL: c.LeaseTTL, MaxAttempts: c.MaxAttempts, MinDeadAge: c.MinDeadAge,
		BlockKeyOnDead: c.BlockKeyOnDead, Retention: c.Retention, InboxRetention: c.InboxRetention,
		CleanInterval:  c.CleanInterval,
		PublishTimeout: c.AckTimeout,
	}
	fill(&cfg.PublishTimeout, -1)
	fill(&cfg.CloseTimeout, 5*time.Second)
	cfg.setDefaults()
	var err error
	if c.AckTimeout < -1 {
		err = fmt.Errorf("SubscriberConfig.AckTimeout is %s: use -1 to wait for ever", c.AckTimeout)
		cfg.PublishTimeout = -1
	}
	return cfg, errors.Join(err, cfg.validate("SubscriberConfig"))
}
