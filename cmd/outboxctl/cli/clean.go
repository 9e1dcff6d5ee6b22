package cli

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-go/watermill-outbox/admin"
)

func (a *app) clean() *cobra.Command {
	var act actFlags
	var outbox, inbox, queue days
	cmd := &cobra.Command{
		Use: "clean", Short: "Delete what was done or discarded long ago",
		Long: `Delete what was done or discarded longer ago than the flags say, in short statements. Dead messages are never deleted, nor pending ones of
the outbox and the queue; what failed longer ago in the inbox and was not handled since is forgotten. Forwarders and dispatchers do all of
that by themselves; this is for jobs where they do not.`,
		Example: "  outboxctl clean --outbox 7d --inbox 30d --yes --actor cron",
	}
	act.bind(a, cmd)
	cmd.Flags().VarP(&outbox, "outbox", "", "keep published messages for so long: 7d, 36h; default: all of them")
	cmd.Flags().VarP(&inbox, "inbox", "", "keep what the inbox knows for so long; default: for ever")
	cmd.Flags().VarP(&queue, "queue", "", "keep processed messages of the queue for so long; default: all of them")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if outbox.of+inbox.of+queue.of == 0 {
			return usagef("what? use --outbox, --inbox or --queue")
		}
		return a.with(cmd.Context(), act.actor, func(ad *admin.Admin) error {
			cfg := admin.CleanConfig{OutboxRetention: outbox.of, InboxRetention: inbox.of, QueueRetention: queue.of, Reason: act.reason, DryRun: true}
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
			if err != nil && r.Outbox.N+r.Inbox.N+r.Queue.N == 0 {
				return wrongAct(err)
			}
			shown := a.show(r, func() error {
				return a.say("Deleted %s of the outbox, %s of the inbox, %s of the queue.", digits(r.Outbox.N), digits(r.Inbox.N), digits(r.Queue.N))
			})
			if err != nil {
				return wrongAct(err)
			}
			return shown
		})
	}
	return cmd
}

// describeClean says what a dry run has counted.
func describeClean(r admin.CleanResult) string {
	count := func(c admin.Count) string {
		if c.More {
			return digits(c.N) + " or more"
		}
		return digits(c.N)
	}
	return count(r.Outbox) + " of the outbox, " + count(r.Inbox) + " of the inbox, " + count(r.Queue) + " of the queue"
}

// days is a flag for a duration that may have days; where none is allowed, that is -1.
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
	switch d.of, err = long(s); {
	case err != nil:
		return errors.New("use numbers with their units, as in 90m, 36h or 7d")
	case d.of <= 0:
		return errors.New("use more than 0")
	}
	return nil
}
