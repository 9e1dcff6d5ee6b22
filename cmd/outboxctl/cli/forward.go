package cli

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
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
	var retention, inboxRetention, deadRetention days
	cmd := &cobra.Command{
		Use: "forward", Short: "Publish the outbox to Kafka, NATS JetStream or RabbitMQ",
		Long: `Publish the outbox to Kafka, NATS JetStream or RabbitMQ until interrupted (Ctrl-C, SIGTERM). With
RabbitMQ each topic goes to the durable queue of its name, which must exist. Flags have environment
variables, such as OUTBOX_LEASE_TTL; a broker on the command line replaces one in the environment.`,
		Example: "  outboxctl forward --kafka k1:9092,k2:9092 --topics orders,bookings",
	}
	broker.bind(cmd)
	flags := cmd.Flags()
	flags.StringVar(&broker.amqp, "amqp", "", "`URL` of RabbitMQ, such as amqps://user:password@host/vhost")
	flags.StringVar(&cfg.Name, "name", "", "name in logs and lists (default: host name and process id)")
	flags.StringSliceVar(&cfg.Topics, "topics", nil, "publish only these topics, separated by commas")
	flags.StringVar(&cfg.Scope, "scope", "",
		"name of the set of topics: forwarders of one scope share lanes (default: from --topics)")
	flags.IntVar(&cfg.Concurrency, "concurrency", 64, "messages published at the same time")
	flags.DurationVar(&cfg.PollInterval, "poll-interval", 500*time.Millisecond, "fallback when no notification arrives")
	flags.BoolVar(&cfg.DisableListen, "no-listen", false, "poll only, without LISTEN")
	flags.DurationVar(&cfg.PublishTimeout, "publish-timeout", 30*time.Second, "time limit for one publish")
	flags.DurationVar(&cfg.LeaseTTL, "lease-ttl", 10*time.Second, "how long lanes stay with a vanished forwarder")
	flags.DurationVar(&cfg.CloseTimeout, "close-timeout", 30*time.Second,
		"how long shutdown waits for publishes")
	flags.IntVar(&cfg.MaxAttempts, "max-attempts", 10, "failed attempts after which a message is dead; -1 = never")
	flags.DurationVar(&cfg.MinDeadAge, "min-dead-age", time.Hour,
		"minimum age of a message to die of failed attempts")
	flags.StringVar(&cfg.DeadLetterTopic, "dead-letter-topic", "",
		"`topic` for dead letters; the role must be allowed to write messages")
	flags.BoolVar(&cfg.BlockKeyOnDead, "block-key-on-dead", false, "keep a key blocked behind its dead message")
	flags.Var(&retention, "retention", "how long published messages are kept; none = delete on publish (default: 7d)")
	flags.Var(&inboxRetention, "inbox-retention",
		"how long inbox rows are kept; none = leave the inbox alone (default: 30d)")
	flags.Var(&deadRetention, "dead-retention",
		"discard messages dead for longer (default: never)")
	flags.BoolVar(&drain, "drain", false, "publish ready messages that no other live forwarder owns, then exit")
	flags.StringVar(&format, "log", "text", "`format` of the log: text or json")
	flags.BoolVar(&debug, "debug", false, "log at debug level")
	retention.none, inboxRetention.none = true, true
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var names []string
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if !slices.Contains(brokerFlagNames, f.Name) { // broker.read handles them
				names = append(names, f.Name)
			}
		})
		if err := errors.Join(a.fromEnv(flags, names...), broker.read(a, cmd), broker.missing()); err != nil {
			return err
		}
		cfg.Retention, cfg.InboxRetention, cfg.DeadRetention = retention.of, inboxRetention.of, deadRetention.of
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

func (a *app) runForwarder(
	ctx context.Context, broker brokerFlags, cfg forwarder.Config, drain bool, logger watermill.LoggerAdapter,
) error {
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

// printing is a writer of JSON that escapes everything not printable.
type printing struct{ to io.Writer }

func (p printing) Write(b []byte) (int, error) {
	if _, err := p.to.Write(printable(b)); err != nil {
		return 0, err
	}
	return len(b), nil
}
