package cli

import (
	"github.com/spf13/cobra"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/move"
)

func (a *app) importTable() *cobra.Command {
	var act actFlags
	var cfg move.TableConfig
	cmd := &cobra.Command{
		Use: "table TABLE", Short: "Move pending rows of a home-made outbox table into the outbox",
		Long: `Move the pending rows of your own outbox table into the outbox, in the order of their ids. Stop its
relay first. You can interrupt this and run it again. Steps: docs/guides/moving.md.

The flags are SQL expressions over its columns, usually a column's name; write m.topic if a column has
the name of a flag.`,
		Example: "  outboxctl import table events --pending 'sent_at IS NULL' --done 'sent_at = now()' --topic type --key " +
			"customer --payload body --dry-run",
		Args: cobra.ExactArgs(1),
	}
	bindMove(a, cmd, &act, &cfg.BatchSize)
	flags := cmd.Flags()
	flags.StringVar(&cfg.ID, "id", "id", "`column` that identifies and orders the rows")
	flags.StringVar(&cfg.Pending, "pending", "", "`condition` of pending rows (required)")
	flags.StringVar(&cfg.Done, "done", "", "`assignments` of an UPDATE after which --pending is false, or "+
		"DELETE (required)")
	flags.StringVar(&cfg.Columns.Topic, "topic", "", "topic; a constant is \"'orders'\" (required)")
	flags.StringVar(&cfg.Columns.Payload, "payload", "", "payload; types other than bytea are sent as "+
		"text (required)")
	flags.StringVar(&cfg.Columns.UUID, "uuid", "", "UUID (default: a new one)")
	flags.StringVar(&cfg.Columns.Key, "key", "", "ordering key (default: AggregateKey of the metadata)")
	flags.StringVar(&cfg.Columns.Metadata, "metadata", "", "metadata, a JSON object")
	flags.StringVar(&cfg.Columns.DueAt, "due", "", "due time")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg.Table = args[0]
		for _, required := range []string{"pending", "done", "topic", "payload"} {
			if flags.Lookup(required).Value.String() == "" {
				return usagef("--%s is missing", required)
			}
		}
		return a.withDB(cmd.Context(), func(db *outbox.DB) error {
			return a.doImport(cmd.Context(), db, act, outbox.AggregateKey,
				func(pub *outbox.Publisher, m moving) (move.Result, error) {
					cfg.DryRun, cfg.Progress, cfg.LockTimeout = m.dry, m.progress, m.lockTimeout
					cfg.Actor, cfg.Reason = act.actor, act.reason
					return move.FromTable(cmd.Context(), pub, cfg)
				})
		})
	}
	return cmd
}
