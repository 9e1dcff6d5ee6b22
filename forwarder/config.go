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
	// Name says in logs and in the table of forwarders which process this is; default host name and process id.
	Name string
	// Topics limits the forwarder to some topics; default all. Order per key holds among them.
	Topics []string
	// Scope names the set of topics. Forwarders of one scope share its lanes and must have the same topics;
	// topics must not overlap between scopes. Default: "default", or the topics as a JSON array.
	Scope string
	// Routes sends topics to other publishers than the one of New. The forwarder closes none.
	Routes map[string]message.Publisher

	// Concurrency is how many messages are published at once, each by a Publish call of its own;
	// default 64. Messages of one key are never published at once. Raise it if the broker is slow and the
	// backlog grows; each needs memory for its message, and the pool needs no more connections.
	Concurrency int
	// ReadAhead is how many messages are read ahead of their publishing at most; default 8192, fewer if
	// they are large. Change it only to save memory; see ReadAheadBytes.
	ReadAhead int
	// ReadAheadBytes is how large payload and metadata of the messages in memory may be together before no more are read;
	// default 32 MiB. It bounds the memory of a forwarder: at most twice as much and one message is kept, and the message
	// that is being read needs its size twice more, however many large ones there are. What the publisher makes of
	// messages comes on top. With large messages it also bounds how many are published at once. Lower it in a small
	// container.
	ReadAheadBytes int
	// PollInterval is the fallback when no notification arrives: how long a message of another process, or one that falls
	// due, may wait; default 500 ms. Lower it behind a pooler if that is too late, raise it to save statements.
	PollInterval time.Duration
	// DisableListen makes the forwarder rely on polling for messages of other processes, instead of listening for
	// their notifications on a connection of its own. Behind a pooler such as PgBouncer, and with a DB of
	// FromSQL, it polls anyway.
	DisableListen bool
	// PublishTimeout bounds a Publish call; after it the message counts as failed, and is sent again. It is not charged an
	// attempt if the publisher has shown that it says whose fault its errors are, as those of kafka.Publisher and
	// nats.Publisher do: then its topic pauses. Else what happens to other messages decides, see Unknown. Default 30 s; -1
	// waits for ever.
	PublishTimeout time.Duration
	// QueryTimeout bounds each statement; default 10 s. Raise it if statements of a slow server time out.
	QueryTimeout time.Duration
	// LeaseTTL is how long a forwarder that vanished keeps its lanes; default 10 s, at least 500 ms. It is renewed at a
	// third of it. Lower it for a faster failover, raise it if processes or the server pause for longer. While
	// statements take less than a third of it, pauses only make it slow: lanes are taken again, and what was under way is
	// published twice. When they take more, the lease cannot be kept and nothing is published: an error line says so.
	LeaseTTL time.Duration
	// CloseTimeout is how long Run waits, once its context is over, for publishes that are under way;
	// default 30 s. Set it to PublishTimeout or more, and below the time after which the process is killed.
	CloseTimeout time.Duration

	// Classify gives a verdict on the errors of Publish, ErrPublishTimeout and ErrPublishPanic among them. Default, and
	// where it returns Unknown: the verdict that the error carries, see PublishError; if it carries none, Unavailable
	// where the publisher said by a method IsConnected that it has no connection, else Unknown.
	Classify func(err error) Verdict
	// Backoff is how long a rejected message waits for its next attempt; default 1 s doubling to 5 min.
	Backoff outbox.Backoff
	// OutageBackoff is how long a topic is paused after it was unavailable, until one message tries it again; default
	// 200 ms doubling to 5 s. Its maximum is how long a topic may take to notice that its broker is back.
	OutageBackoff outbox.Backoff
	// MaxAttempts is after how many charged attempts a message is dead; default 10, -1 never. Raise it if messages
	// recover by themselves, lower it if a blocked key costs more than a dead message.
	MaxAttempts int
	// MinDeadAge is the age below which attempts do not make a message dead, so that an outage that is not
	// recognised does not kill the only message that there is; default 1 h, -1 no age. Set it above the longest outage.
	MinDeadAge time.Duration
	// DeadLetterTopic, if set, gets a copy of each message that dies, written to the outbox in the transaction in which it
	// dies: the payload as it was, and metadata that says which message it was and why it died, under the names that
	// package middleware gives a dead letter. Metadata that could command a broker are renamed as there. It has a UUID of
	// its own and no key. The message stays in the outbox, dead, as without a letter. A letter that dies has none. With
	// Topics, put this one among them, or have another forwarder take it. The role needs what schema.Roles grants a writer
	// as well.
	DeadLetterTopic string
	// BlockKeyOnDead keeps later messages of a key waiting behind a dead one until it is requeued or discarded;
	// default: they are published. Set it where a later message means nothing without the dead one.
	BlockKeyOnDead bool
	// Retention is how long published messages are kept; default 7 days, -1 deletes them as they are published. Keep them
	// longer than you need to notice that a broker has lost some: what is deleted cannot be replayed or reconciled.
	Retention time.Duration
	// InboxRetention is how long rows of the inbox of the same tables are kept after their message was processed; default
	// 30 days, -1 leaves them alone. A copy that arrives later is handled again, so keep them longer than a broker, a
	// delay, a requeue or a replay can take to deliver one. Messages that failed so long ago for the first time, and were
	// not handled since, go as well; should one be redelivered, its failures are counted anew. Dead ones stay.
	InboxRetention time.Duration
	// CleanInterval is how often messages past their Retention are looked for, and those whose rows were changed by
	// hand: made pending again, or settled or deleted while their key waited for them; default 1 min.
	CleanInterval time.Duration

	tables sqltext.Tables                          // those of the handle
	check  func(context.Context, *outbox.DB) error // schema.CheckOutbox, but where a test has no catalog
}

func (c *Config) setDefaults() {
	c.tables = c.tables.WithDefaults()
	if c.check == nil {
		c.check = schema.CheckOutbox
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
			scope, _ := json.Marshal(c.Topics) // strings always have a JSON form
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

// validate returns an error that names the fields at fault, of the Config or whatever it was made from.
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
		off   bool // -1 switches it off
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

// ready checks a backoff and asks its Func once and for all: the engine calls no code of the user's under its lock.
func ready(b *outbox.Backoff, field string) error {
	asked, err := core.Backoff(*b).Asked(field)
	*b = outbox.Backoff(asked)
	return errors.Join(err, asked.Validate(field))
}
