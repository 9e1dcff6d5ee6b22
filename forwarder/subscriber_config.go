package forwarder

import (
	"errors"
	"fmt"
	"time"
)

// SubscriberConfig configures a Subscriber. The zero value is ready for use.
type SubscriberConfig struct {
	// Relay says that the handlers which publish pass the messages on, to a broker for example: middleware.Outbox lets
	// through what they return, and middleware.Inbox does not note the message, because their publishing may fail and must be
	// repeated. Handlers without a publish topic are guarded all the same. Default: the messages are handled like any others,
	// and a handler that returns the message itself fails with middleware.ErrRelayed.
	Relay bool
	// AckTimeout is how long a delivery may take; after it the message counts as failed, its context ends, and it is
	// delivered again after its backoff. Default -1: for ever.
	AckTimeout time.Duration
	// Config is that of a Forwarder, for what both do alike. Concurrency counts deliveries without an ack; CloseTimeout, how long the end
	// of a subscription waits for acks, is 5 s by default; Backoff follows a nack; DeadLetterTopic needs a forwarder or another subscription that
	// takes it. Topics, Scope, Routes, PublishTimeout, Classify and OutageBackoff are a Forwarder's alone, and refused.
	Config
}

// config is that of the engine, with its defaults.
func (c SubscriberConfig) config() (Config, error) {
	var errs []error
	for field, set := range map[string]bool{
		"Topics": c.Topics != nil, "Scope": c.Scope != "", "Routes": c.Routes != nil, "Classify": c.Classify != nil,
		"OutageBackoff": c.OutageBackoff.Initial != 0 || c.OutageBackoff.Max != 0 || c.OutageBackoff.Func != nil,
	} {
		if set {
			errs = append(errs, fmt.Errorf("SubscriberConfig.%s is for a Forwarder: leave it out", field))
		}
	}
	if c.PublishTimeout != 0 {
		errs = append(errs, fmt.Errorf("SubscriberConfig.PublishTimeout is %s: use AckTimeout", c.PublishTimeout))
	}
	cfg := c.Config
	cfg.PublishTimeout = c.AckTimeout
	fill(&cfg.PublishTimeout, -1)
	fill(&cfg.CloseTimeout, 5*time.Second)
	cfg.setDefaults()
	if c.AckTimeout < -1 {
		errs = append(errs, fmt.Errorf("SubscriberConfig.AckTimeout is %s: use -1 to wait for ever", c.AckTimeout))
		cfg.PublishTimeout = -1
	}
	return cfg, errors.Join(append(errs, cfg.validate("SubscriberConfig"))...)
}
