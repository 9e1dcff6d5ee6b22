package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/millrace-go/watermill-outbox/admin"
)

func (a *app) redrive() *cobra.Command {
	var broker brokerFlags
	var log brokerLog
	var cfg admin.TopicRedrive
	v := verb{
		Verb: admin.Verb{
			Past: "Redriven", States: map[admin.Table][]admin.State{admin.Inbox: {admin.Dead}},
			Does: map[admin.Table]string{admin.Inbox: `Read the dead letters that a topic of the broker holds, and publish each again as the message that it
was: to the topic that it was consumed from, under its UUID, through the outbox. Its row of the inbox is
requeued in the same transaction, so its handler handles it once. Letters of messages that are not dead
any more are skipped. Nothing is deleted from the topic.

Each letter is redriven once, however often you run this: after an interrupt run it again. A message
that died again has another letter; one that was redriven --max-redrives times is skipped, and so is
one that came from the dead-letter topic itself.

For letters that the outbox still has, outboxctl inbox redrive needs no broker.`},
		},
		name: "redrive", topic: true, short: "Publish the dead letters of a topic of the broker again, as the messages that they were", example: "  outboxctl redrive dead_letters --kafka k1:9092 --consumer booking/book --dry-run",
		do: func(ad *admin.Admin, ctx context.Context, act admin.Act) (admin.Result, error) {
			return ad.RedriveTopic(ctx, log, cfg, act)
		},
	}
	cmd := a.act(admin.Inbox, v, " TOPIC")
	broker.bind(cmd)
	cmd.Flags().IntVar(&cfg.MaxRedrives, "max-redrives", 3, "skip messages that were redriven so often")
	act := cmd.RunE
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		cfg.Topic = args[0]
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
		return act(cmd, nil)
	}
	return cmd
}
