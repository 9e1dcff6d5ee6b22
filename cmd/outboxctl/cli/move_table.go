package cli

import (
	"github.com/spf13/cobra"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/move"
)

func (a *app) importTable() *cobra.Command {
	var act actFlags
	var cfg move.TableConfig
	cmd := &cobra.Command{
		Use: "table TABLE", Short: "Move what the relay of a home-made outbox table has not sent yet into the outbox",
		Long: `Move what the relay of a home-made outbox table has not sent yet into the outbox, in the order of its ids. Stop the relay first. Each
batch is one transaction: interrupt it at any time, and call it again. What is written meanwhile is moved too. docs/guides/moving.md says when to do it.

The flags are SQL over the columns of that table, most often just a column's name. They become part of the statements as they
are: where a column has the name of one of these flags, write m. in front of it.`,
		Example: "  outboxctl import table events --pending 'sent_at IS NULL' --done 'sent_at = now()' --topic type --key customer --payload body --dry-run",
		Args:    cobra.ExactArgs(1),
	}
	bindMove(a, cmd, &act, &cfg.BatchSize)
	flags := cmd.Flags()
	flags.StringVar(&cfg.ID, "id", "id", "`column` that identifies a row and puts the rows in order")
	flags.StringVar(&cfg.Pending, "pending", "", "`condition` of rows that are not sent yet (required)")
	flags.StringVar(&cfg.Done, "done", "", "what marks a row as sent, so that it does not fit --pending any more: `assignments` of an UPDATE, or DELETE (required)")
	flags.StringVar(&cfg.Columns.Topic, "topic", "", "where it goes: `expression`; a constant is \"'orders'\" (required)")
	flags.StringVar(&cfg.Columns.Payload, "payload", "", "`expression`; what is not bytea is sent as its text (required)")
	flags.StringVar(&cfg.Columns.UUID, "uuid", "", "identity of the message: `expression` (default: a new one)")
	flags.StringVar(&cfg.Columns.Key, "key", "", "ordering key: `expression` (default: from the metadata, as AggregateKey does)")
	flags.StringVar(&cfg.Columns.Metadata, "metadata", "", "`expression` of a JSON object (default: none)")
	flags.StringVar(&cfg.Columns.DueAt, "due", "", "time to which it is delayed: `expression` (default: none)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg.Table = args[0]
		for _, required := range []string{"pending", "done", "topic", "payload"} {
			if flags.Lookup(required).Value.String() == "" {
				return usagef("--%s is missing", required)
			}
		}
		return a.withDB(cmd.Context(), func(db *outbox.DB) error {
			return a.doImport(cmd.Context(), db, act, outbox.AggregateKey, func(pub *outbox.Publisher, m moving) (move.Result, error) {
				cfg.DryRun, cfg.Progress, cfg.LockTimeout = m.dry, m.progress, m.lockTimeout
				cfg.Actor, cfg.Reason = act.actor, act.reason
				return move.FromTable(cmd.Context(), pub, cfg)
			})
		})
	}
	return cmd
}
