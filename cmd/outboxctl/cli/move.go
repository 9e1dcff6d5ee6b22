package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/spf13/cobra"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/move"
	"github.com/millrace-go/watermill-outbox/internal/words"
)

func (a *app) imports() *cobra.Command {
	cmd := &cobra.Command{
		Use: "import", Short: "Move pending messages of another outbox into this one: watermill-sql, or a table of your own",
	}
	cmd.AddCommand(a.importWatermill(), a.importTable())
	return cmd
}

func (a *app) exports() *cobra.Command {
	cmd := &cobra.Command{Use: "export", Short: "Move pending messages of this outbox into another: watermill-sql"}
	cmd.AddCommand(a.exportWatermill())
	return cmd
}

// moveFlags are the flags of all moves.
type moveFlags struct {
	act actFlags
	cfg move.WatermillConfig
}

func (f *moveFlags) bind(a *app, cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.cfg.Topic, "topic", "", "`topic` of Watermill's forwarder (default: forwarder_topic)")
	flags.StringVar(&f.cfg.MessagesTable, "messages-table", "",
		"`table` of its messages, in SQL (default: watermill_ and the topic)")
	bindMove(a, cmd, &f.act, &f.cfg.BatchSize)
}

func bindMove(a *app, cmd *cobra.Command, act *actFlags, batchSize *int) {
	act.bind(a, cmd)
	cmd.Flags().IntVar(batchSize, "batch", 500, "messages per transaction")
}

func (a *app) importWatermill() *cobra.Command {
	var f moveFlags
	var key string
	cmd := &cobra.Command{
		Use: "watermill-sql", Short: "Move pending messages of Watermill's forwarder into the outbox",
		Long: `Move the pending messages of Watermill's forwarder, with those written meanwhile, from a table of
watermill-sql v3 or v4 into the outbox. You can interrupt this and run it again. Steps and role:
docs/guides/moving.md.`,
		Example: "  outboxctl import watermill-sql --key metadata:customer_id",
	}
	f.bind(a, cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.cfg.OffsetsTable, "offsets-table", "",
		"`table` of its offsets, in SQL (default: watermill_offsets_ and the topic)")
	flags.StringVar(&f.cfg.ConsumerGroup, "consumer-group", "", "its consumer group, if it has one")
	flags.BoolVar(&f.cfg.UnreadableAsDead, "unreadable-as-dead", false,
		"store unreadable messages as dead instead of stopping")
	flags.StringVar(&key, "key", "", "ordering key: `metadata:NAME`, or topic for one key per topic (default: "+
		"the message's own)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		of, err := keyFunc(key)
		if err != nil {
			return err
		}
		return a.withDB(cmd.Context(), func(db *outbox.DB) error {
			return a.doImport(cmd.Context(), db, f.act, of, func(pub *outbox.Publisher, m moving) (move.Result, error) {
				f.cfg.DryRun, f.cfg.Progress, f.cfg.LockTimeout = m.dry, m.progress, m.lockTimeout
				f.cfg.Actor, f.cfg.Reason = f.act.actor, f.act.reason
				return move.FromWatermill(cmd.Context(), pub, f.cfg)
			})
		})
	}
	return cmd
}

func (a *app) exportWatermill() *cobra.Command {
	var f moveFlags
	cmd := &cobra.Command{
		Use: "watermill-sql", Short: "Move pending messages into the table of Watermill's forwarder",
		Long: `Move pending messages, with those written meanwhile, into a table of watermill-sql v3 or v4. Stop all
forwarders of the outbox first. Dead messages stay. Steps and role: docs/guides/moving.md.`,
	}
	f.bind(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.withDB(cmd.Context(), func(db *outbox.DB) error {
			return a.move(cmd.Context(), db, "export", f.act, func(m moving) (move.Result, error) {
				f.cfg.DryRun, f.cfg.Progress, f.cfg.LockTimeout = m.dry, m.progress, m.lockTimeout
				f.cfg.Actor, f.cfg.Reason = f.act.actor, f.act.reason
				return move.ToWatermill(cmd.Context(), db, f.cfg)
			})
		})
	}
	return cmd
}

// keyOf returns the key of a message, as outbox.PublisherConfig.Key does.
type keyOf func(topic string, msg *message.Message) (string, error)

// keyFunc returns the function that the flag selects.
func keyFunc(flag string) (keyOf, error) {
	name, named := strings.CutPrefix(flag, "metadata:")
	switch {
	case flag == "":
		return outbox.AggregateKey, nil
	case flag == "topic":
		return func(topic string, _ *message.Message) (string, error) { return topic, nil }, nil
	case named && name != "":
		return func(_ string, msg *message.Message) (string, error) { return msg.Metadata.Get(name), nil }, nil
	}
	return nil, usagef("--key is %q: use topic or metadata:NAME", flag)
}

// moved is the JSON result of a move.
type moved struct {
	DryRun bool `json:"dry_run"`
	move.Result
}

// moving describes how to perform a move.
type moving struct {
	dry         bool
	progress    func(context.Context, move.Result)
	lockTimeout time.Duration
}

// doImport moves into the outbox, and first prints how many messages have no key, because a misspelled
// name loses the order.
func (a *app) doImport(
	ctx context.Context, db *outbox.DB, act actFlags, of keyOf, do func(*outbox.Publisher, moving) (move.Result, error),
) error {
	var keyless int64
	pub, err := outbox.NewPublisher(db, outbox.PublisherConfig{
		Key: func(topic string, msg *message.Message) (string, error) {
			key, err := of(topic, msg)
			if err == nil && key == "" {
				keyless++
			}
			return key, err
		},
	}, nil)
	if err != nil {
		return err
	}
	return a.move(ctx, db, "import", act, func(m moving) (move.Result, error) {
		r, err := do(pub, m)
		if m.dry && err == nil && keyless > 0 {
			a.inform("no ordering key, so their order is not kept: %s: see --key", countMessages(admin.Count{N: keyless}))
		}
		return r, err
	})
}

// move runs a move dry, asks for confirmation, and performs it.
func (a *app) move(
	ctx context.Context, db *outbox.DB, name string, act actFlags, do func(moving) (move.Result, error),
) error {
	if act.actor == "" {
		return wrongAct(admin.ErrNoActor)
	}
	lockTimeout := cmp.Or(a.global.timeout, -1)
	tried, err := do(moving{dry: true, lockTimeout: lockTimeout})
	if err != nil {
		return err
	}
	if act.dryRun || tried.Moved == 0 {
		return a.show(moved{true, tried}, func() error {
			return a.say("%s would move %s.%s", title(name), describeMove(tried), held(tried.Pending-tried.Moved))
		})
	}
	question := fmt.Sprintf("%s all pending messages, now %s, and those written meanwhile?", title(name),
		describeMove(tried))
	if err := act.confirm(ctx, a, question); err != nil {
		return err
	}
	bar := a.progress(admin.Count{N: tried.Moved})
	r, err := do(moving{lockTimeout: lockTimeout, progress: func(_ context.Context, r move.Result) { bar.set(r.Moved) }})
	bar.end()
	if err != nil && r.AuditID != 0 { // a batch may have been committed although its reply was lost
		if ad, failed := admin.New(db, admin.Config{}, nil); failed == nil {
			if e := entryOf(ctx, ad, r.AuditID); e != nil && e.Result.Touched != r.Moved {
				r.Moved, r.Topics = e.Result.Touched, nil // the log does not contain these
			}
		}
	}
	said := a.show(moved{false, r}, func() error {
		entry := ""
		if r.AuditID != 0 {
			entry = fmt.Sprintf("; entry %d of the audit log", r.AuditID)
		}
		return a.say("Moved %s%s.%s", describeMove(r), entry, held(r.Left))
	})
	if err != nil {
		return err
	}
	return said
}

func describeMove(r move.Result) string {
	var topics []string
	for _, topic := range slices.Sorted(maps.Keys(r.Topics)) {
		topics = append(topics, topic+" "+words.Number(r.Topics[topic]))
	}
	s := countMessages(admin.Count{N: r.Moved})
	if len(topics) > 0 {
		s += " (" + strings.Join(topics, ", ") + ")"
	}
	if r.Dead > 0 {
		s += ", of which " + words.Number(r.Dead) + " unreadable and now dead"
	}
	return s
}

func held(n int64) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf(" Still pending: %s, written meanwhile, delayed, or waiting for older transactions to end. "+
		"Run it again.", countMessages(admin.Count{N: n}))
}
