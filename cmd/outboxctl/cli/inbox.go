package cli

import (
	"github.com/spf13/cobra"

	"github.com/millrace-go/watermill-outbox/admin"
)

func (a *app) inbox() *cobra.Command {
	cmd := &cobra.Command{Use: "inbox", Short: "Messages of the inbox: list, show, redrive, requeue, discard"}
	cmd.AddCommand(a.list(ofInbox), a.get(ofInbox),
		a.act(ofInbox, verb{
			name: "redrive", done: "Redriven", states: []admin.State{admin.Dead}, do: (*admin.Admin).Redrive,
			short: "Publish dead messages again, from their dead letters in the outbox",
			long: `Publish dead messages again, from their dead letters in the outbox: to the topics that they were
consumed from, under their UUIDs. They are requeued in the same transaction, so their handlers handle
them once. Other consumers of these topics get a copy, which their inboxes skip.

The outbox deletes letters after its retention. Then read them from the broker: outboxctl redrive.`,
		}, " [ID...]"),
		a.act(ofInbox, verb{
			name: "requeue", done: "Requeued", states: []admin.State{admin.Dead, admin.Discarded}, do: (*admin.Admin).Requeue,
			short: "Handle dead messages again on their next delivery",
			long: `Handle dead messages again on their next delivery: the broker must redeliver them, or outboxctl
messages replay in the outbox that they came from. If neither does, use outboxctl inbox redrive.

An ID is printed by list: the consumer, a colon, and the message's UUID.`,
		}, " [ID...]"),
		a.act(ofInbox, verb{
			name: "discard", done: "Discarded", reason: true, states: []admin.State{admin.Dead, admin.Failing, admin.Ready},
			do:    (*admin.Admin).Discard,
			short: "Mark messages as handled without handling them",
			long: "Mark messages as handled without handling them: their next delivery is acked and does nothing. " +
				"--reason is\nrequired, and stored.",
		}, " [ID...]"))
	return cmd
}
