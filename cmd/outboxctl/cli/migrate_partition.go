package cli

import (
	"github.com/spf13/cobra"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/schema"
)

func (a *app) migratePartition() *cobra.Command {
	var cfg schema.PartitionConfig
	cmd := &cobra.Command{
		Use: "partition", Short: "Split the outbox into partitions",
		Long: `Split an outbox that is one table into partitions, while writers and forwarders work. No row is
copied: the table becomes the first partition. Privileges, policies, triggers and indexes go with the
name of the outbox; views and foreign keys must be dropped first.

It reads the table once and blocks writers only for one short transaction. It waits for no lock but
retries until it is interrupted. Run it as the owner of the table.`,
		Example: "  outboxctl migrate partition --partition-size 4000000",
	}
	cmd.Flags().Int64Var(&cfg.PartitionSize, "partition-size", 0,
		"ids in each partition: a quarter of those that are used within the retention")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cfg.PartitionSize <= 0 {
			return usagef("--partition-size is %d: use the number of ids in a partition", cfg.PartitionSize)
		}
		return a.withDB(cmd.Context(), func(db *outbox.DB) error {
			if err := schema.Partition(cmd.Context(), db, cfg); err != nil {
				return err
			}
			return a.show(map[string]bool{"partitioned": true}, func() error { return a.say("the outbox is in partitions") })
		})
	}
	return cmd
}

func (a *app) migrateUnpartition() *cobra.Command {
	cmd := &cobra.Command{
		Use: "unpartition", Short: "Make an outbox in partitions one table again",
		Long: `Make an outbox in partitions one table, while writers and forwarders work. No row is copied: all rows
must be in one partition, which becomes the table, and the others are dropped. It waits for no lock but
retries until it is interrupted. Run it as the owner of the table.`,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.withDB(cmd.Context(), func(db *outbox.DB) error {
			if err := schema.Unpartition(cmd.Context(), db); err != nil {
				return err
			}
			return a.show(map[string]bool{"partitioned": false}, func() error { return a.say("the outbox is one table") })
		})
	}
	return cmd
}
