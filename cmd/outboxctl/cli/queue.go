package cli

import (
	"github.com/spf13/cobra"

	"github.com/millrace-go/watermill-outbox/admin"
)

func (a *app) queue() *cobra.Command {
	cmd := &cobra.Command{Use: "queue", Short: "Messages that package queue keeps until they are processed: list, show, requeue, discard, retry-now"}
	cmd.AddCommand(a.list(ofQueue), a.get(ofQueue),
		a.act(ofQueue, verb{name: "requeue", done: "Requeued", states: []admin.State{admin.Dead}, do: (*admin.Admin).Requeue,
			short: "Try dead messages again, with all their attempts",
			long:  "Try dead messages again, with all their attempts. An ID is what list says: the source, a colon, and the message's id."}, " [ID...]"),
		a.act(ofQueue, verb{name: "discard", done: "Discarded", reason: true, states: []admin.State{admin.Dead, admin.Failing, admin.Delayed, admin.Ready}, do: (*admin.Admin).Discard,
			short: "Settle messages that are never to be processed",
			long:  "Settle messages that are never to be processed. The --reason is required, and kept. They are done then like any other: nothing brings them back."}, " [ID...]"),
		a.act(ofQueue, verb{name: "retry-now", done: "Retried", states: []admin.State{admin.Failing, admin.Delayed}, do: (*admin.Admin).RetryNow,
			short: "Try messages now that wait for another attempt"}, " [ID...]"))
	return cmd
}
