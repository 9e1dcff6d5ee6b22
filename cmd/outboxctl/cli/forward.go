package cli

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace-go/watermill-outbox/forwarder"
)

func (a *app) forward() *cobra.Command {
	var broker brokerFlags
	var cfg forwarder.Config
	var drain, debug bool
	var format string
	var retention, inboxRetention days
	cmd := &cobra.Command{
		Use: "forward", Short: "Publish what is in the outbox to Kafka or NATS JetStream",
		Long: `Publish what is in the outbox to Kafka or NATS JetStream, until it is told to end (Ctrl-C, SIGTERM). Then it starts no more
messages, waits for those that are under way, and gives back what it owns. Any number of them may run; they share the work.

Every flag of this command may come from the environment instead: --lease-ttl from OUTBOX_LEASE_TTL. So a container needs no code:

  OUTBOX_DSN=postgres://... OUTBOX_NATS=nats://nats:4222 outboxctl forward --log json

A container that is to notice what goes wrong: outboxctl check. Kafka and JetStream are told apart by what they say about errors: see the
packages publisher/kafka and publisher/nats for what is the message's fault and what pauses a topic.`,
		Example: "  outboxctl forward --kafka k1:9092,k2:9092 --topics orders,bookings\n  outboxctl forward --nats nats://localhost:4222 --drain",
	}
	broker.bind(cmd)
	flags := cmd.Flags()
	flags.StringVar(&cfg.Name, "name", "", "who it is, in logs and in the table of forwarders; default: host name and process id")
	flags.StringSliceVar(&cfg.Topics, "topics", nil, "forward these topics alone, separated by commas")
	flags.StringVar(&cfg.Scope, "scope", "", "names the set of topics; default: the topics themselves")
	flags.IntVar(&cfg.Concurrency, "concurrency", 64, "how many messages are published at once")
	flags.DurationVar(&cfg.PollInterval, "poll-interval", 500*time.Millisecond, "how long a message may wait that nobody woke us for")
	flags.BoolVar(&cfg.DisableListen, "no-listen", false, "poll instead of listening for notifications")
	flags.DurationVar(&cfg.PublishTimeout, "publish-timeout", 30*time.Second, "bounds the publishing of one message")
	flags.DurationVar(&cfg.LeaseTTL, "lease-ttl", 10*time.Second, "how long it keeps its lanes after it vanished")
	flags.DurationVar(&cfg.CloseTimeout, "close-timeout", 30*time.Second, "how long it waits in the end for messages that are under way")
	flags.IntVar(&cfg.MaxAttempts, "max-attempts", 10, "after how many rejected attempts a message is dead; -1 = never")
	flags.DurationVar(&cfg.MinDeadAge, "min-dead-age", time.Hour, "how old a message must be to die of its attempts")
	flags.StringVar(&cfg.DeadLetterTopic, "dead-letter-topic", "", "`topic` that gets a copy of each message that dies; its role must be allowed to write messages")
	flags.BoolVar(&cfg.BlockKeyOnDead, "block-key-on-dead", false, "keep later messages of a key waiting behind a dead one")
	flags.Var(&retention, "retention", "how long published messages are kept; none: they are deleted as they are published; default: 7d")
	flags.Var(&inboxRetention, "inbox-retention", "how long the inbox knows what was processed; none: its rows are left alone; default: 30d")
	flags.BoolVar(&drain, "drain", false, "publish what is ready and end")
	flags.StringVar(&format, "log", "text", "`format` of the log: text or json")
	flags.BoolVar(&debug, "debug", false, "log more")
	retention.none, inboxRetention.none = true, true
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var names []string
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if err := errors.Join(a.fromEnv(flags, names...), broker.read(a, cmd), broker.missing()); err != nil {
			return err
		}
		cfg.Retention, cfg.InboxRetention = retention.of, inboxRetention.of
		if a.global.timeout > 0 {
			cfg.QueryTimeout = a.global.timeout
		}
		logger, err := a.logger(format, debug)
		if err != nil {
			return err
		}
		return a.runForwarder(cmd.Context(), broker, cfg, drain, logger)
	}
	return cmd
}

func (a *app) runForwarder(ctx context.Context, broker brokerFlags, cfg forwarder.Config, drain bool, logger watermill.LoggerAdapter) error {
	db, end, err := a.connect(ctx, 4)
	if err != nil {
		return err
	}
	defer end()
	pub, err := broker.publisher(logger)
	if err != nil {
		return &usageError{err}
	}
	fwd, err := forwarder.New(db, pub, cfg, logger)
	if err != nil {
		return &usageError{errors.Join(err, pub.Close())}
	}
	if drain {
		err = fwd.Drain(ctx)
	} else {
		err = fwd.Run(ctx)
	}
	return errors.Join(err, pub.Close())
}

// logger writes to standard error.
func (a *app) logger(format string, debug bool) (watermill.LoggerAdapter, error) {
	options := &slog.HandlerOptions{Level: slog.LevelInfo}
	if debug {
		options.Level = slog.LevelDebug
	}
	switch strings.ToLower(format) {
	case "text":
		return watermill.NewSlogLogger(slog.New(slog.NewTextHandler(a.err, options))), nil
	case "json":
		return watermill.NewSlogLogger(slog.New(slog.NewJSONHandler(printing{a.err}, options))), nil
	}
	return nil, usagef("--log is %q: use text or json", format)
}

// printing is a writer of JSON that lets nothing pass that does not print.
type printing struct{ to io.Writer }

func (p printing) Write(b []byte) (int, error) {
	if _, err := p.to.Write(printable(b)); err != nil {
		return 0, err
	}
	return len(b), nil
}
