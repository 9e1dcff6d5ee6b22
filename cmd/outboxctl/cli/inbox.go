package cli

import (
	"github.com/spf13/cobra"

	"github.com/millrace-go/watermill-outbox/admin"
)

func (a *app) inbox() *cobra.Command {
	cmd := &cobra.Command{Use: "inbox", Short: "Messages of the inbox: list, show, requeue, discard"}
	cmd.AddCommand(a.list(ofInbox), a.get(ofInbox),
		a.act(ofInbox, verb{
			name: "requeue", done: "Requeued", states: []admin.State{admin.Dead, admin.Discarded}, do: (*admin.Admin).Requeue,
			short: "Handle dead messages again on their next delivery",
			long: `Handle dead messages again on their next delivery: the broker must redeliver them, or outboxctl
messages replay in the outbox that they came from. If neither does, publish the dead letter to the
handler's topic instead, and leave the inbox alone; do not do both, or the message is handled twice.

An ID is printed by list: the consumer, a colon, and the message's UUID.`,
		}, " [ID...]"),
		a.act(ofInbox, verb{
			name: "discard", done: "Discarded", reason: true, states: []admin.State{admin.Dead, admin.Failing},
			do:    (*admin.Admin).Discard,
			short: "Mark messages as handled without handling them",
			long: "Mark messages as handled without handling them: their next delivery is acked and does nothing. " +
				"--reason is\nrequired, and stored.",
		}, " [ID...]"))
	return cmd
}
