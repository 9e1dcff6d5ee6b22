package forwarder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/schema"
)

// Config configures a Forwarder. The zero value is ready for use.
type Config struct {
	// Name identifies the process in logs and tables; default host name and process id.
	Name string
	// Topics limits the forwarder to some topics; default all. Order per key holds among them.
	Topics []string
	// Scope names the set of topics. Forwarders of one scope share its lanes and must have the same topics; topics of
	// different scopes must not overlap. Default: "default", or the topics as a JSON array.
	Scope string
	// Routes sends topics to other publishers than the publisher of New. The forwarder closes none.
	Routes map[string]message.Publisher

	// Concurrency is the number of concurrent publishes, each of one message; default 64. Raise it if the broker is
	// slow and the backlog grows.
	Concurrency int
	// ReadAhead is the number of messages in memory; default 8192, fewer if they are large.
	ReadAhead int
	// ReadAheadBytes bounds payload and metadata in memory; default 32 MiB. At most twice that and one message are
	// kept. Lower it in a small container.
	ReadAheadBytes int
	// PollInterval is how often the table is polled when no notification arrives; default 500 ms.
	PollInterval time.Duration
	// DisableListen polls instead of listening on its own connection; default off. Behind a transaction pooler and with
	// FromSQL the forwarder polls anyway.
	DisableListen bool
	// PublishTimeout bounds a call of Publish; default 30 s, -1 no limit. Then the message is sent again. The attempt
	// is counted unless the publisher's errors carry verdicts; then its topic pauses.
	PublishTimeout time.Duration
	// QueryTimeout bounds each statement; default 10 s.
	QueryTimeout time.Duration
	// LeaseTTL is how long a vanished forwarder keeps its lanes; default 10 s, at least 500 ms. Lower it for a faster
	// failover, raise it if processes or the server pause. If statements take longer than a third of it, nothing is
	// published, and an error line reports it.
	LeaseTTL time.Duration
	// CloseTimeout is how long Run waits for publishes in flight when its context ends; default 30 s. Set it to at least
	// PublishTimeout. Under outbox.Run, RunConfig.CloseTimeout (default 25 s) ends the wait sooner. Otherwise give the
	// process more than 30 s before it is killed: the default of Kubernetes is 30 s.
	CloseTimeout time.Duration

	// Classify returns a verdict on an error of any publisher; WithVerdicts is for one of several. Default, and for
	// Unknown: the verdict that the error carries (PublishError); else Unavailable if the publisher's IsConnected
	// returns false; else Unknown.
	Classify func(err error) Verdict
	// Backoff is the wait before a rejected message is retried; default 1 s doubling to 5 min. Without an ordering key a
	// message may wait longer, usually up to PollInterval, if another forwarder has taken over its lane.
	Backoff outbox.Backoff
	// OutageBackoff is the wait between probes of a paused topic; default 200 ms doubling to 5 s. Its maximum is how
	// late the end of an outage is noticed.
	OutageBackoff outbox.Backoff
	// MaxAttempts is the number of failed attempts after which a message is dead; default 10, -1 unlimited.
	MaxAttempts int
	// MinDeadAge is the minimum age of a message before failed attempts can make it dead; default 1 h,
	// -1 no minimum. Messages that are older when they first fail, such as delayed or requeued ones, die after
	// MaxAttempts.
	MinDeadAge time.Duration
	// DeadLetterTopic gets a dead letter for each message that dies, in the same transaction; default none. It has its own
	// UUID and the metadata of package middleware's dead letters. It is published with the key of the message, in no
	// particular order. A forwarder must publish this topic, and the role needs a writer's grants.
	DeadLetterTopic string
	// BlockKeyOnDead keeps later messages of a key waiting behind a dead one until it is requeued or discarded; default
	// off.
	BlockKeyOnDead bool
	// Retention is how long published messages are kept; default 7 days, -1 deletes them immediately, and discarded
	// messages after a day. Deleted messages cannot be replayed or reconciled.
	Retention time.Duration
	// InboxRetention is how long the inbox remembers handled messages; default 30 days, and -1 (forever) for a Subscriber.
	// A duplicate that arrives later is handled again: keep it above the broker's retention and your longest delay.
	// Messages that last failed longer ago and were not handled since are forgotten too; dead ones stay. The inbox is not
	// divided by topic: the shortest InboxRetention of all forwarders on the tables applies.
	InboxRetention time.Duration
	// DeadRetention is how long dead messages of the outbox, and of the inbox unless InboxRetention is -1, are kept before
	// they are discarded; in the inbox, too, the shortest of all forwarders applies. Default 0, forever. They are
	// discarded as if by an operator: the audit log gets an entry, and the rows are deleted after Retention or
	// InboxRetention. A key that was blocked by BlockKeyOnDead continues. A forwarder looks for them once an hour, and its
	// role needs an admin's grants.
	DeadRetention time.Duration
	// CleanInterval is how often the forwarder looks for old rows and for rows changed by hand; default 1 min.
	CleanInterval time.Duration

	tables sqltext.Tables                          // of the handle
	check  func(context.Context, *outbox.DB) error // schema.Check, except in tests without a catalog
}

func (c *Config) setDefaults() {
	c.tables = c.tables.WithDefaults()
	if c.check == nil {
		c.check = func(ctx context.Context, db *outbox.DB) error {
			_, err := schema.Check(ctx, db, schema.CheckConfig{OnlyOutbox: true})
			return err
		}
	}
	if c.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		c.Name = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	c.Topics = slices.Compact(slices.Sorted(slices.Values(c.Topics)))
	if c.Scope == "" {
		c.Scope = "default"
		if len(c.Topics) > 0 {
			scope, _ := json.Marshal(c.Topics) // strings can always be encoded
			c.Scope = string(scope)
		}
	}
	fill(&c.Concurrency, 64)
	fill(&c.ReadAhead, 8192)
	fill(&c.ReadAheadBytes, readAheadBytes)
	fill(&c.PollInterval, 500*time.Millisecond)
	fill(&c.PublishTimeout, 30*time.Second)
	fill(&c.QueryTimeout, 10*time.Second)
	fill(&c.LeaseTTL, 10*time.Second)
	fill(&c.CloseTimeout, 30*time.Second)
	fill(&c.MaxAttempts, 10)
	fill(&c.MinDeadAge, time.Hour)
	fill(&c.Retention, 7*24*time.Hour)
	fill(&c.InboxRetention, 30*24*time.Hour)
	fill(&c.CleanInterval, time.Minute)
	c.Backoff = outbox.Backoff(core.Backoff(c.Backoff).WithDefaults(time.Second, 5*time.Minute))
	c.OutageBackoff = outbox.Backoff(core.Backoff(c.OutageBackoff).WithDefaults(200*time.Millisecond, 5*time.Second))
}

func fill[T comparable](field *T, def T) {
	var zero T
	if *field == zero {
		*field = def
	}
}

// validate returns an error that names the invalid fields. config is the name of the struct that the user set.
func (c *Config) validate(config string) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(config+"."+format, args...)) }
	if err := c.tables.Validate(); err != nil {
		bad("Tables: %w", err)
	}
	if c.Concurrency < 1 {
		bad("Concurrency is %d: use at least 1", c.Concurrency)
	}
	if c.ReadAhead < 1 {
		bad("ReadAhead is %d: use at least 1", c.ReadAhead)
	}
	if c.ReadAheadBytes < 1 {
		bad("ReadAheadBytes is %d: use a positive size", c.ReadAheadBytes)
	}
	for _, d := range []struct {
		field string
		value time.Duration
		off   bool // -1 disables it
	}{
		{"PollInterval", c.PollInterval, false}, {"QueryTimeout", c.QueryTimeout, false},
		{"LeaseTTL", c.LeaseTTL, false}, {"CloseTimeout", c.CloseTimeout, false},
		{"CleanInterval", c.CleanInterval, false}, {"PublishTimeout", c.PublishTimeout, true},
		{"MinDeadAge", c.MinDeadAge, true}, {"Retention", c.Retention, true},
		{"InboxRetention", c.InboxRetention, true},
	} {
		if d.value < 0 && !(d.off && d.value == -1) {
			bad("%s is %s: use a positive duration", d.field, d.value)
		}
	}
	if c.DeadRetention < 0 {
		bad("DeadRetention is %s: use a positive duration, or 0 to keep dead messages", c.DeadRetention)
	}
	if c.LeaseTTL > 0 && c.LeaseTTL < 500*time.Millisecond {
		bad("LeaseTTL is %s: use at least 500ms", c.LeaseTTL)
	}
	if c.MaxAttempts < -1 {
		bad("MaxAttempts is %d: use -1 for no limit", c.MaxAttempts)
	}
	for topic, pub := range c.Routes {
		if pub == nil {
			bad("Routes[%q] is nil", topic)
		}
		if len(c.Topics) > 0 && !slices.Contains(c.Topics, topic) {
			bad("Routes[%q] is not among Topics", topic)
		}
	}
	if len(c.DeadLetterTopic) > core.MaxTopicBytes || !text.Storable(c.DeadLetterTopic) {
		bad("DeadLetterTopic must be UTF-8 without NUL, of at most %d bytes", core.MaxTopicBytes)
	}
	if slices.Contains(c.Topics, "") {
		bad("Topics holds an empty topic")
	}
	for _, err := range []error{ready(&c.Backoff, config+".Backoff"), ready(&c.OutageBackoff, config+".OutageBackoff")} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// ready checks a backoff and calls its Func now for all later uses: the engine calls no user code under its lock.
func ready(b *outbox.Backoff, field string) error {
	precomputed, err := core.Backoff(*b).Precomputed(field)
	*b = outbox.Backoff(precomputed)
	return errors.Join(err, precomputed.Validate(field))
}
