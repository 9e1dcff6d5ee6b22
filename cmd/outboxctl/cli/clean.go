package cli

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/words"
)

func (a *app) clean() *cobra.Command {
	var act actFlags
	var outbox, inbox, queue days
	var keys bool
	cmd := &cobra.Command{
		Use: "clean", Short: "Delete old rows: published, processed or discarded",
		Long: `Delete rows that were published, processed or discarded longer ago than the given retentions, and inbox rows
that last failed longer ago and were never handled. Dead messages stay. Forwarders and dispatchers do
the same on their own.`,
		Example: "  outboxctl clean --outbox 7d --inbox 30d --yes --actor cron",
	}
	act.bind(a, cmd)
	cmd.Flags().VarP(&outbox, "outbox", "", "retention of published messages, such as 7d or 36h")
	cmd.Flags().VarP(&inbox, "inbox", "", "retention of inbox rows")
	cmd.Flags().VarP(&queue, "queue", "", "retention of processed messages of the queue")
	cmd.Flags().BoolVar(&keys, "idempotency", false, "delete expired HTTP requests, with their responses")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if outbox.of+inbox.of+queue.of == 0 && !keys {
			return usagef("nothing to clean: use --outbox, --inbox, --queue or --idempotency")
		}
		return a.with(cmd.Context(), act.actor, func(ad *admin.Admin) error {
			cfg := admin.CleanConfig{
				OutboxRetention: outbox.of, InboxRetention: inbox.of, QueueRetention: queue.of, Idempotency: keys,
				Reason: act.reason, DryRun: true,
			}
			if act.dryRun || !act.yes {
				r, err := ad.Clean(cmd.Context(), cfg)
				if err != nil {
					return wrongAct(err)
				}
				if act.dryRun {
					return a.show(r, func() error { return a.say("Clean would delete %s.", describeClean(r)) })
				}
				if err := act.confirm(cmd.Context(), a, "Delete "+describeClean(r)+"?"); err != nil {
					return err
				}
				cfg.At = r.At
			}
			cfg.DryRun = false
			r, err := ad.Clean(cmd.Context(), cfg)
			if err != nil && r.Outbox.N+r.Inbox.N+r.Queue.N+r.Idempotency.N == 0 {
				return wrongAct(err)
			}
			shown := a.show(r, func() error {
				return a.say("Deleted %s of the outbox, %s of the inbox, %s of the queue, %s HTTP requests.",
					words.Number(r.Outbox.N), words.Number(r.Inbox.N), words.Number(r.Queue.N), words.Number(r.Idempotency.N))
			})
			if err != nil {
				return wrongAct(err)
			}
			return shown
		})
	}
	return cmd
}

// describeClean describes the counts of a dry run.
func describeClean(r admin.CleanResult) string {
	count := func(c admin.Count) string {
		if c.More {
			return words.Number(c.N) + " or more"
		}
		return words.Number(c.N)
	}
	return count(r.Outbox) + " of the outbox, " + count(r.Inbox) + " of the inbox, " + count(r.Queue) + " of the queue, " +
		count(r.Idempotency) + " HTTP requests"
}

// days is a flag for a duration, also in days; if "none" is allowed, its value is -1.
type days struct {
	of   time.Duration
	none bool
}

func (d *days) String() string {
	if d.of == 0 {
		return ""
	}
	return d.of.String()
}

func (*days) Type() string { return "duration" }

func (d *days) Set(s string) (err error) {
	if d.none && s == "none" {
		d.of = -1
		return nil
	}
	switch d.of, err = words.Duration(s); {
	case err != nil:
		return errors.New("use a number with its unit, such as 90m, 36h or 7d")
	case d.of <= 0:
		return errors.New("use more than 0")
	}
	return nil
}
