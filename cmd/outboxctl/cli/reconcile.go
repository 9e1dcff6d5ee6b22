package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/millrace-go/watermill-outbox/admin"
)

func (a *app) reconcile() *cobra.Command {
	var broker brokerFlags
	var log brokerLog
	v := verb{name: "reconcile", done: "Sent again", states: []admin.State{admin.Done}, long: `Compare the published messages that are still kept with what the broker holds of their topics, by UUID, and send those again that
it has lost: a broker that acknowledges before it has synced to disk, or whose log was truncated, does not say so. --dry-run
says how many there are. The messages must be of topics that go to this broker, and clocks must agree within ten minutes.

It refuses topics and streams from which what is missing may have been deleted as it was meant to be: by age, by compaction, because it
was consumed, or by limits on messages or bytes. --after then names a time from which on nothing was.`,
		short:   "Send again what the broker has lost",
		example: "  outboxctl reconcile --nats nats://localhost:4222 --topic orders --after 3h --dry-run",
		do: func(ad *admin.Admin, ctx context.Context, act admin.Act) (admin.Result, error) {
			return ad.Reconcile(ctx, log, act)
		}}
	cmd := a.act(ofOutbox, v, " [ID...]")
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
