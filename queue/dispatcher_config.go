package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	outbox "github.com/millrace-go/watermill-outbox"
)

// DispatcherConfig configures a Dispatcher. Handlers or DefaultHandler is required.
type DispatcherConfig struct {
	// Service names the service in what observers are told; default none. Set it where services share a metrics
	// registry.
	Service string
	// Handlers are the handlers by topic. Required, unless DefaultHandler is set.
	Handlers map[string]Handler
	// DefaultHandler handles the messages of all other topics; its Concurrency must be 0. Default: none. Such messages
	// are then left to others that have a handler for them, another service or release. Those that none has claimed
	// for 10 s wait without a charge, up to a minute at a time in the first hour and up to an hour at a time later, with
	// a warning for each topic once a minute. Do not store what no release will handle: see ErrIgnore.
	DefaultHandler Handler
	// Concurrency is how many messages are claimed and handled at once; default 16. A handler in a transaction keeps a
	// connection of the pool, which needs two or three more. Raise it, with the pool, if handlers mostly wait.
	Concurrency int
	// MaxBytes is how large the payloads of the messages that are being handled may be together, in bytes, before no
	// more are claimed; default 64 MiB. It bounds their memory: at most as much and one message more, twice, as each
	// handler gets a copy, and in a Group that for each database. With large messages fewer than Concurrency are
	// handled at once. Lower it in a small container.
	MaxBytes int
	// BatchSize is how many messages one statement claims at most; default 50, at most 10,000. Raise it for very short
	// handlers with a high Concurrency.
	BatchSize int
	// LeaseTTL is how long a message that a process has claimed is kept from others if the process dies; default 30 s,
	// at least 1 s. It is renewed while a handler runs, so handlers may take longer. Lower it for a faster failover,
	// raise it if processes or the server pause for longer.
	LeaseTTL time.Duration
	// PollInterval is the fallback when no notification arrives: how often the table is looked at; default 500 ms.
	// While there is nothing to do it grows up to ten times that, which is how late a delayed message may be. Lower it
	// if that is too late, raise it to save statements.
	PollInterval time.Duration
	// DisableListen makes the dispatcher rely on polling for commits of other processes, instead of listening on a
	// connection of its own; default off. Set it behind a pooler such as PgBouncer, or to save the connection.
	DisableListen bool
	// CloseTimeout is how long Run waits for handlers once its context is over, before it ends their contexts; default
	// 30 s. Set it below the time after which the process is killed.
	CloseTimeout time.Duration
	// CleanInterval is how often messages are deleted that were done longer ago than StoreConfig.Retention; default 1
	// min, -1 never. Switch it off where a job calls Store.Clean.
	CleanInterval time.Duration
	// Tx are the settings of the transactions that handlers run in: isolation, time-out, OnBegin, which runs after the
	// message was marked done. Default: those of outbox.InTx.
	Tx outbox.TxOptions
	// Classify decides about errors that wrap neither outbox.ErrPoison nor outbox.ErrAlreadyProcessed. Default: the
	// message is retried, as it is with any result other than outbox.DeadLetter and outbox.Ack.
	Classify func(err error) outbox.Decision
	// OnDead is called for a message that dies here, in the transaction that then marks it dead: to publish a dead
	// letter, for example. Default: none. Its context ends after 30 s, and with those of handlers. If it fails, the
	// message does not die, and is retried after a minute. If processes die of it, three beyond those that used up the
	// attempts (ten where StoreConfig.MaxAttempts is -1), the message is marked dead without it, with an error line. A
	// copy that is stored meanwhile is Busy, as it is while a handler runs. Store.Fail and MarkDead do not call it.
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
