package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	outbox "github.com/millrace-go/watermill-outbox"
)

// DispatcherConfig configures a Dispatcher. Handlers or DefaultHandler is required.
type DispatcherConfig struct {
	// Service names the service to observers; default none. Set it if services share a metrics registry.
	Service string
	// Handlers are the handlers by topic. Required, unless DefaultHandler is set.
	Handlers map[string]Handler
	// DefaultHandler handles all other topics; its Concurrency must be 0. Without it their messages are left to other
	// processes, which have their own limits: the messages wait without a counted attempt, do not become dead, even if
	// they have expired, and cause one warning a minute for each topic.
	DefaultHandler Handler
	// Concurrency is the number of messages handled concurrently; default 16. A handler in a transaction needs a
	// connection; the dispatcher two or three more.
	Concurrency int
	// MaxBytes bounds the payloads that are being handled; default 64 MiB. Memory use is at most twice that plus one
	// message. In a Group it applies to each database.
	MaxBytes int
	// BatchSize is the number of messages of one claim; default 50, at most 10,000. Raise it for short handlers with a
	// high Concurrency.
	BatchSize int
	// LeaseTTL is how long messages of a dead process wait; default 30 s, at least 1 s. It is renewed while a handler
	// runs.
	LeaseTTL time.Duration
	// PollInterval is how often the table is polled when no notification arrives; default 500 ms. It grows tenfold while
	// there is nothing to do, and a delayed message can be that late.
	PollInterval time.Duration
	// DisableListen polls instead of listening on a connection of its own; default off. Set it behind a transaction
	// pooler.
	DisableListen bool
	// CloseTimeout is how long Run waits for handlers before it ends their contexts; default 30 s. Under outbox.Run,
	// RunConfig.CloseTimeout (default 25 s) ends the wait sooner. Otherwise give the process more time than this before it
	// is killed.
	CloseTimeout time.Duration
	// CleanInterval is how often messages past StoreConfig.Retention are deleted; default 1 min, -1 never.
	CleanInterval time.Duration
	// Tx configures the handlers' transactions; OnBegin runs after the ack. Default: those of outbox.InTx.
	Tx outbox.TxOptions
	// Classify returns outbox.DeadLetter, outbox.Ack or outbox.Nack for errors that wrap neither outbox.ErrPoison nor
	// outbox.ErrAlreadyProcessed; default: Nack.
	Classify func(err error) outbox.Decision
	// OnDead is called in the transaction that marks a message dead; default none. It can publish a dead letter. Its
	// context ends after 30 s. If it fails, the message is retried after a minute; if OnDead kills its process three
	// times, the message is marked dead without it. OnDead applies to topics that have a handler here. It is not called
	// for messages that Store.Fail, MarkDead or ReapExpired makes dead, or another service that handles the topic without
	// OnDead.
	OnDead func(ctx context.Context, msg *Message, err error) error
}

func (c *DispatcherConfig) setDefaults() {
	fill(&c.Concurrency, 16)
	fill(&c.MaxBytes, defaultMaxBytes)
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
	if c.DefaultHandler.Handle != nil {
		c.DefaultHandler.setDefaults(c.Concurrency)
	}
}

// handler returns the handler of a topic.
func (c *DispatcherConfig) handler(topic string) (h Handler, known bool) {
	if h, known = c.Handlers[topic]; !known {
		h, known = c.DefaultHandler, c.DefaultHandler.Handle != nil
	}
	return h, known
}

// topics returns the topics that have a handler; nil = all.
func (c *DispatcherConfig) topics() []string {
	if c.DefaultHandler.Handle != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(c.Handlers))
}

// fill sets a field that has its zero value.
func fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (c DispatcherConfig) validate() error {
	errs := []error{
		positive("DispatcherConfig.Concurrency", c.Concurrency),
		positive("DispatcherConfig.MaxBytes", c.MaxBytes),
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
	if h := c.DefaultHandler; h.Handle != nil {
		if errs = append(errs, h.validate("DispatcherConfig.DefaultHandler")); h.Concurrency != c.Concurrency {
			errs = append(errs, fmt.Errorf("DispatcherConfig.DefaultHandler.Concurrency is %d: use 0: "+
				"it shares DispatcherConfig.Concurrency with "+
				"the handlers that have no limit of their own", h.Concurrency))
		}
	} else if h.Detached || h.Concurrency != 0 || h.Timeout != 0 {
		errs = append(errs, h.validate("DispatcherConfig.DefaultHandler"))
	} else if len(c.Handlers) == 0 {
		errs = append(errs, errors.New("DispatcherConfig.Handlers is empty: add a handler, or set DefaultHandler"))
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
		return fmt.Errorf("%s is %s: use at least %s, to leave time for renewals", field, lease, minLease)
	}
	return nil
}
