package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/millrace-go/watermill-outbox/admin"
)

func (a *app) reconcile() *cobra.Command {
	var broker brokerFlags
	var log brokerLog
	v := verb{
		Verb: admin.Verb{
			Past: "Requeued", States: map[admin.Table][]admin.State{admin.Outbox: {admin.Done}},
		},
		name: "reconcile", short: "Publish messages again that the broker has lost",
		example: "  outboxctl reconcile --nats nats://localhost:4222 --topic orders --after 3h --dry-run",
		do: func(ad *admin.Admin, ctx context.Context, act admin.Action) (admin.Result, error) {
			return ad.Reconcile(ctx, log, act)
		},
	}
	cmd := a.act(admin.Outbox, v, " [ID...]")
	cmd.Long = `Compare the published messages that are still kept with the broker's, by UUID, and publish the
missing ones again. Name topics that go to this broker; its clock and the database's must agree within
ten minutes.

If a topic or stream deletes messages by age, size, number, compaction or consumption, set --after to
a time since when nothing was deleted; otherwise reconcile refuses.`
	broker.bind(cmd)
	act := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if err := broker.read(a, cmd); err != nil {
			return err
		}
		if err := broker.missing(); err != nil {
			return err
		}
		if log, err = broker.log(); err != nil {
			return &usageError{err}
		}
		defer func() { _ = log.Close() }()
		return act(cmd, args)
	}
	return cmd
}
