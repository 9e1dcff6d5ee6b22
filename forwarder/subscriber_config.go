package forwarder

import (
	"errors"
	"fmt"
	"time"

	outbox "github.com/millrace-go/watermill-outbox"
)

// SubscriberConfig configures a Subscriber. Fields without a comment are as in Config.
type SubscriberConfig struct {
	// Relay is for handlers that pass messages on to a broker: middleware.Outbox lets the returned messages through,
	// and middleware.Inbox does not record the message. It is off by default: a handler that returns the message itself
	// fails with middleware.ErrRelayed.
	Relay bool
	// AckTimeout bounds a delivery; then its context ends and the message has failed. Default -1, no limit.
	AckTimeout time.Duration
	// Concurrency is the number of delivered messages without an ack; default 64.
	Concurrency int
	// CloseTimeout is how long the end of a subscription waits for acks; default 5 s.
	CloseTimeout time.Duration
	// Backoff is the wait of a message after a nack; default 1 s doubling to 5 min.
	Backoff outbox.Backoff
	// DeadLetterTopic is as in Config. A Forwarder or another subscription must read it.
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
	DeadRetention  time.Duration
	CleanInterval  time.Duration
}

// config returns the engine's configuration, with its defaults.
func (c SubscriberConfig) config() (Config, error) {
	cfg := Config{
		Concurrency: c.Concurrency, CloseTimeout: c.CloseTimeout, Backoff: c.Backoff, DeadLetterTopic: c.DeadLetterTopic,
		Name: c.Name, ReadAhead: c.ReadAhead, ReadAheadBytes: c.ReadAheadBytes, PollInterval: c.PollInterval,
		DisableListen: c.DisableListen,
		QueryTimeout:  c.QueryTimeout, LeaseTTL: c.LeaseTTL, MaxAttempts: c.MaxAttempts, MinDeadAge: c.MinDeadAge,
		BlockKeyOnDead: c.BlockKeyOnDead, Retention: c.Retention, InboxRetention: c.InboxRetention,
		DeadRetention:  c.DeadRetention,
		CleanInterval:  c.CleanInterval,
		PublishTimeout: c.AckTimeout,
	}
	fill(&cfg.PublishTimeout, -1)
	fill(&cfg.CloseTimeout, 5*time.Second)
	cfg.setDefaults()
	var err error
	if c.AckTimeout < -1 {
		err = fmt.Errorf("SubscriberConfig.AckTimeout is %s: use -1 to wait forever", c.AckTimeout)
		cfg.PublishTimeout = -1
	}
	return cfg, errors.Join(err, cfg.validate("SubscriberConfig"))
}
