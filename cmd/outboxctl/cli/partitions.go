package cli

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/internal/words"
)

func (a *app) partitions() *cobra.Command {
	cmd := &cobra.Command{Use: "partitions", Short: "Partitions of the outbox: list, maintain"}
	cmd.AddCommand(a.partitionsList(), a.partitionsMaintain())
	return cmd
}

func (a *app) partitionsList() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List partitions, their states, and which messages hold them"}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.with(cmd.Context(), "", func(ad *admin.Admin) error {
			list, err := ad.Partitions(cmd.Context())
			if err != nil {
				return err
			}
			return a.show(map[string]any{"partitions": list}, func() error { return partitionGrid("", list).print(a) })
		})
	}
	return cmd
}

func (a *app) partitionsMaintain() *cobra.Command {
	var act actFlags
	var retention days
	var size int64
	cmd := &cobra.Command{
		Use: "maintain", Short: "Make partitions ahead, and drop settled ones",
		Long: `Create partitions until eight are ahead of the last id, and empty and drop each partition behind it in
which everything was published or discarded longer ago than --retention. Run it hourly as the owner of
the table: docs/run/partitions.md. The exit code is 1 if no partition is ahead of the ids.`,
		Example: "  outboxctl partitions maintain --retention 7d --yes --actor cron",
	}
	act.bind(a, cmd)
	cmd.Flags().VarP(&retention, "retention", "", "drop partitions settled longer ago, such as 7d or 36h (default: "+
		"none)")
	cmd.Flags().Int64Var(&size, "partition-size", 0, "ids in each new partition; 0 = as many as in the newest")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.with(cmd.Context(), act.actor, func(ad *admin.Admin) error {
			cfg := admin.PartitionsConfig{Retention: retention.of, PartitionSize: size, Reason: act.reason, DryRun: true}
			if act.dryRun || !act.yes {
				r, err := ad.MaintainPartitions(cmd.Context(), cfg)
				if err != nil {
					return wrongAct(err)
				}
				if act.dryRun {
					return a.show(r, func() error { return a.printMaintained(r, "would be made", "would be dropped") })
				}
				if err := act.confirm(cmd.Context(), a, fmt.Sprintf("Make %d and drop %d partitions, "+
					"with %s messages?", len(r.Made), len(r.Dropped), words.Number(r.Removed))); err != nil {
					return err
				}
				cfg.At = r.At
			}
			cfg.DryRun = false
			r, err := ad.MaintainPartitions(cmd.Context(), cfg)
			if err != nil && len(r.Made)+len(r.Dropped)+len(r.Kept) == 0 {
				return wrongAct(err)
			}
			shown := a.show(r, func() error { return a.printMaintained(r, "made", "dropped") })
			switch {
			case err != nil:
				return wrongAct(err)
			case r.Ahead == 0:
				return fmt.Errorf("no partition is ahead of the ids: %s: run outboxctl doctor", r.NotMade)
			}
			return shown
		})
	}
	return cmd
}

func (a *app) printMaintained(r admin.PartitionsResult, made, dropped string) error {
	g := grid{heads: []string{"PARTITION", "RESULT", "WHY"}, empty: "nothing to do"}
	for _, name := range r.Made {
		g.rows = append(g.rows, plain(name, made, ""))
	}
	for _, name := range r.Dropped {
		g.rows = append(g.rows, plain(name, dropped, ""))
	}
	for _, name := range slices.Sorted(maps.Keys(r.Kept)) {
		g.rows = append(g.rows, plain(name, "kept", r.Kept[name]))
	}
	if r.NotMade != "" {
		g.rows = append(g.rows, plain("", "not made", r.NotMade))
	}
	return g.print(a)
}

// partitionGrid is the table of the partitions of an outbox.
func partitionGrid(title string, list []admin.Partition) grid {
	g := grid{title: title, heads: []string{"PARTITION", "STATE", "FROM", "TO", "SIZE", "OLDEST", "PENDING", "DEAD"},
		empty: "the outbox is one table"}
	for _, p := range list {
		from, to, oldest := bound(p.From), bound(p.To), ""
		if p.Default {
			from, to = "other ids", ""
		}
		if p.Oldest > 0 {
			oldest = words.Age(p.Oldest)
		}
		g.rows = append(g.rows, plain(p.Name, string(p.State), from, to, text.Size(p.Bytes), oldest,
			unlessZero(p.Pending), unlessZero(p.Dead)))
	}
	return g
}

// bound formats an id; 0 = none.
func bound(id int64) string {
	if id == 0 {
		return ""
	}
	return words.Number(id)
}

func unlessZero(c admin.Count) string {
	if c.N == 0 {
		return ""
	}
	return c.String()
}
