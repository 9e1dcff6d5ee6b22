package cli

import (
	"github.com/spf13/cobra"

	"github.com/millrace-go/watermill-outbox/admin"
)

func (a *app) inbox() *cobra.Command {
	cmd := &cobra.Command{Use: "inbox", Short: "Messages that the Router's handlers have handled: list, show, requeue, discard"}
	cmd.AddCommand(a.list(ofInbox), a.get(ofInbox),
		a.act(ofInbox, verb{name: "requeue", done: "Requeued", states: []admin.State{admin.Dead, admin.Discarded}, do: (*admin.Admin).Requeue,
			short: "Have dead messages handled when they are delivered next",
			long: `Have dead messages handled when they are delivered next: somebody must deliver them. Send the dead letter to the handler's topic
instead, and leave the inbox alone, if nobody will; not both, or it is handled twice. An ID is what list says: the consumer, a colon,
and the message's UUID.`}, " [ID...]"),
		a.act(ofInbox, verb{name: "discard", done: "Discarded", reason: true, states: []admin.State{admin.Dead, admin.Failing}, do: (*admin.Admin).Discard,
			short: "Note messages as handled that are never to be",
			long:  "Note messages as handled that are never to be: the next copy is acked and does nothing. The --reason is required, and kept."}, " [ID...]"))
	return cmd
}
