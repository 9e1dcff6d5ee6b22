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
			Does: map[admin.Table]string{admin.Outbox: `Compare the published messages that are still kept with the broker's, by UUID, and publish again what
the broker has lost, such as by a power failure before it synced to disk. Name topics that go to this
broker; its clock and the database's must agree within ten minutes.

If a topic or stream deletes messages by age, size, number, compaction or consumption, give --after a
time since which nothing was deleted; otherwise it is refused.`},
		},
		name: "reconcile", short: "Publish again what the broker has lost",
		example: "  outboxctl reconcile --nats nats://localhost:4222 --topic orders --after 3h --dry-run",
		do: func(ad *admin.Admin, ctx context.Context, act admin.Act) (admin.Result, error) {
			return ad.Reconcile(ctx, log, act)
		},
	}
	cmd := a.act(admin.Outbox, v, " [ID...]")
	cmd.Long = v.Does[admin.Outbox]
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
