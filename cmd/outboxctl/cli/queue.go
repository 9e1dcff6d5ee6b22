package cli

import (
	"github.com/spf13/cobra"

	"github.com/millrace-go/watermill-outbox/admin"
)

func (a *app) queue() *cobra.Command {
	cmd := &cobra.Command{Use: "queue", Short: "Messages of the durable queue: list, show, requeue, discard, retry-now"}
	cmd.AddCommand(a.list(ofQueue), a.get(ofQueue),
		a.act(ofQueue, verb{name: "requeue", done: "Requeued", states: []admin.State{admin.Dead}, do: (*admin.Admin).Requeue,
			short: "Retry dead messages with all their attempts",
			long: "Retry dead messages with all their attempts.\n\nAn ID is printed by list: the source, a colon, " +
				"and the message's id."}, " [ID...]"),
		a.act(ofQueue, verb{
			name: "discard", done: "Discarded", reason: true,
			states: []admin.State{admin.Dead, admin.Failing, admin.Delayed, admin.Ready}, do: (*admin.Admin).Discard,
			short: "Discard messages that must never be processed",
			long:  "Discard messages that must never be processed. --reason is required, and stored. This cannot be undone.",
		}, " [ID...]"),
		a.act(ofQueue, verb{
			name: "retry-now", done: "Retried", states: []admin.State{admin.Failing, admin.Delayed}, do: (*admin.Admin).RetryNow,
			short: "Retry failing messages now",
		}, " [ID...]"))
	return cmd
}
