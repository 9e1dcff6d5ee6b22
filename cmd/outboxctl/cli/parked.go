package cli

import (
	"strconv"

	"github.com/spf13/cobra"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/words"
)

func (a *app) parkedKeys() *cobra.Command {
	return &cobra.Command{
		Use: "parked", Short: "List keys of Kafka that keep failing and are parked in Postgres",
		Long: `List keys of Kafka that keep failing and are parked in Postgres by subscriber/kafka, so that their
partitions go on. Their messages are in a table beside the outbox, outbox_parked, and are retried from
there in the order of their key. A key is read from Kafka again when all of them are handled.

To give up the first message of a key, discard it in the inbox, where it is failing. One that is not
there is skipped as below: the key is its partition, a slash and the key.`,
		Example: "  outboxctl keys parked\n" +
			"  outboxctl inbox discard booking/book:UUID --state failing --reason 'refunded by hand'\n" +
			"  outboxctl --tables outbox=outbox_parked keys skip --key 3/order-42 --reason 'refunded by hand'\n" +
			"  outboxctl --tables outbox=outbox_parked audit    # acts on them are noted there",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), "", func(ad *admin.Admin) error {
				keys, err := ad.ParkedKeys(cmd.Context())
				if err != nil {
					return err
				}
				return a.show(map[string]any{"keys": keys}, func() error { return parkedGrid(keys).print(a) })
			})
		},
	}
}

func parkedGrid(keys []admin.ParkedKey) grid {
	g := grid{
		title: "Parked keys",
		heads: []string{"GROUP", "TOPIC", "PARTITION", "KEY", "MESSAGES", "AGE", "ATTEMPTS", "DELIVERED", "ERROR"},
		empty: "no key is parked",
	}
	for _, k := range keys {
		delivered := cell{text: "yes"}
		if !k.Delivered {
			delivered = cell{"no", red}
		}
		partition := strconv.Itoa(int(k.Partition))
		if k.Key == "" {
			partition = ""
		}
		g.rows = append(g.rows, []cell{
			{text: k.Group}, {text: k.Topic}, {text: partition}, {text: k.Key}, {text: strconv.FormatInt(k.Messages, 10)},
			{text: words.Age(k.Age)}, {text: strconv.Itoa(k.Attempts)}, delivered, {text: k.LastError},
		})
	}
	return g
}
