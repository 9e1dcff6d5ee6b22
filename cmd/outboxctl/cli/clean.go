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
		Long: `Delete what was done or discarded longer ago than the flags say, in short statements. Dead and pending messages are never deleted.
Forwarders and dispatchers do that by themselves; this is for jobs where they do not.`,
		Example: "  outboxctl clean --outbox 7d --inbox 30d --yes --actor cron",
	}
	act.bind(a, cmd)
	cmd.Flags().VarP(&outbox, "outbox", "", "keep published messages for so long: 7d, 36h; default: all of them")
	cmd.Flags().VarP(&inbox, "inbox", "", "keep what the inbox knows for so long; default: for ever")
	cmd.Flags().VarP(&queue, "queue", "", "keep processed messages of the queue for so long; default: all of them")
	_ = cmd.Flags().MarkHidden("dry-run")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if outbox.of+inbox.of+queue.of == 0 {
			return usagef("what? use --outbox, --inbox or --queue")
		}
		if act.dryRun {
			return usagef("clean has no dry run")
		}
		if err := act.confirm(cmd.Context(), a, "Delete what is older than that?"); err != nil {
			return err
		}
		return a.with(cmd.Context(), act.actor, func(ad *admin.Admin) error {
			r, err := ad.Clean(cmd.Context(), admin.CleanConfig{OutboxRetention: outbox.of, InboxRetention: inbox.of,
				QueueRetention: queue.of, Reason: act.reason})
			if err != nil && r == (admin.CleanResult{}) {
				return wrongAct(err)
			}
			shown := a.show(r, func() error {
				return a.say("Deleted %s of the outbox, %s of the inbox, %s of the queue.", digits(r.Outbox), digits(r.Inbox), digits(r.Queue))
			})
			if err != nil {
				return wrongAct(err)
			}
			return shown
		})
	}
	return cmd
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
