package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	outbox "github.com/millrace-go/watermill-outbox"
)

// DispatcherConfig configures a Dispatcher. Handlers is required.
type DispatcherConfig struct {
	// Service names the service in what observers are told; default none.
	Service string
	// Handlers are the handlers by topic. Messages of other topics are put off, by up to a minute at a time, with a warning for
	// each topic once a minute: another release may have handlers for them. They are charged an attempt each time only when
	// such a topic has been coming by for an hour.
	Handlers map[string]Handler
	// Concurrency is how many messages are handled at once; default 16. No more are claimed. A handler in a transaction
	// keeps a connection of the pool, which needs two or three more.
	Concurrency int
	// BatchSize is how many messages one statement claims at most; default 50.
	BatchSize int
	// LeaseTTL is how long a message that a process has claimed is kept from others if the process dies; default 30 s, at least 1 s. Handlers
	// may take longer.
	LeaseTTL time.Duration
	// PollInterval is how often messages are looked for that nobody told of; default 500 ms. While there are none it grows up to
	// ten times that, which is how late a delayed message may be.
	PollInterval time.Duration
	// DisableListen saves the connection on which commits of other processes are heard of.
	DisableListen bool
	// CloseTimeout is how long Run waits for handlers when it is to end, until their contexts end; default 30 s.
	CloseTimeout time.Duration
	// CleanInterval is how often messages are deleted that were done longer ago than StoreConfig.Retention; default 1 min, -1 =
	// never.
	CleanInterval time.Duration
	// Tx are the settings of the transactions that handlers run in. OnBegin runs after the message was marked done.
	Tx outbox.TxOptions
	// Classify decides about errors that wrap neither outbox.ErrPoison nor outbox.ErrAlreadyProcessed. Default: the message comes
	// again, as it does with any answer beside outbox.DeadLetter and outbox.Ack.
	Classify func(err error) outbox.Decision
	// OnDead is called for a message that dies here, in the transaction that marks it dead: to publish a dead letter, for one. If it
	// fails the message does not die, and comes again after a minute. Store.Fail and MarkDead do not call it.
	OnDead func(ctx context.Context, msg *Message, err error) error
}

func (c *DispatcherConfig) setDefaults() {
	fill(&c.Concurrency, 16)
	fill(&c.BatchSize, 50)
	fill(&c.LeaseTTL, 30*time.Second)
	fill(&c.PollInterval, 500*time.Millisecond)
	fill(&c.CloseTimeout, 30*time.Second)
	fill(&c.CleanInterval, time.Minute)
	if c.Classify == nil {
		c.Classify = func(error) outbox.Decision { return outbox.Nack }
	}
	handlers := make(map[string]Handler, len(c.Handlers))
	for topic, h := range c.Handlers {
		h.setDefaults(c.Concurrency)
		handlers[topic] = h
	}
	c.Handlers = handlers
}

// fill sets what is not set.
func fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (c DispatcherConfig) validate() error {
	errs := []error{
		positive("DispatcherConfig.Concurrency", c.Concurrency),
		positive("DispatcherConfig.BatchSize", c.BatchSize),
		positive("DispatcherConfig.PollInterval", c.PollInterval),
		positive("DispatcherConfig.CloseTimeout", c.CloseTimeout),
		atLeastMinLease("DispatcherConfig.LeaseTTL", c.LeaseTTL),
	}
	if c.BatchSize > maxClaim {
		errs = append(errs, fmt.Errorf("DispatcherConfig.BatchSize is %d, the limit is %d", c.BatchSize, maxClaim))
	}
	if c.CleanInterval < -1 {
		errs = append(errs, fmt.Errorf("DispatcherConfig.CleanInterval is %s: use -1 for never", c.CleanInterval))
	}
	if len(c.Handlers) == 0 {
		errs = append(errs, errors.New("DispatcherConfig.Handlers is empty: it says which topics are handled, and how"))
	}
	for topic, h := range c.Handlers {
		field := fmt.Sprintf("DispatcherConfig.Handlers[%q]", topic)
		if topic == "" {
			errs = append(errs, fmt.Errorf("%s: no message has an empty topic", field))
		}
		errs = append(errs, h.validate(field))
	}
	return errors.Join(errs...)
}

func positive[T int | time.Duration](field string, value T) error {
	if value < 0 {
		return fmt.Errorf("%s is %v: use 0 for the default, or more", field, value)
	}
	return nil
}

func atLeastMinLease(field string, lease time.Duration) error {
	if lease < minLease {
		return fmt.Errorf("%s is %s: it must be at least %s, because it is renewed in time only if it lasts", field, lease, minLease)
	}
	return nil
}
