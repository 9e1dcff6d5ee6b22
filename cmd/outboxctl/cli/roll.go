package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/words"
)

func (a *app) roll() *cobra.Command {
	var act actFlags
	var retention days
	var size int64
	cmd := &cobra.Command{
		Use: "roll", Short: "Make, empty and drop the partitions of a partitioned outbox",
		Long: `Maintain an outbox in partitions: create partitions ahead of the ids, empty those in which everything
was published or discarded longer ago than --retention, and drop empty ones. Pending and dead messages
stay: up to 1,000 of a partition are put back in the same transaction; if there are more, its old rows
are deleted one by one.

Run it every hour as the owner of the table, with a shorter retention than the forwarders'. It waits
for no lock longer than 30 seconds: partitions in use are left for the next run. It exits with 1 if no
partition is ahead of the ids.`,
		Example: "  outboxctl roll --retention 7d --yes --actor cron",
	}
	act.bind(a, cmd)
	cmd.Flags().VarP(&retention, "retention", "", "empty what was published or discarded longer ago, such as 7d or 36h "+
		"(default: empty nothing, only make leaves)")
	cmd.Flags().Int64Var(&size, "partition-size", 0, "ids in each leaf that is made; 0 = as many as in the newest")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.with(cmd.Context(), act.actor, func(ad *admin.Admin) error {
			cfg := admin.RollConfig{Retention: retention.of, PartitionSize: size, Reason: act.reason, DryRun: true}
			if act.dryRun || !act.yes {
				r, err := ad.RollOutbox(cmd.Context(), cfg)
				if err != nil {
					return wrongAct(err)
				}
				if act.dryRun {
					return a.show(r, func() error { return a.printRolled(r, "Roll would have ") })
				}
				if err := act.confirm(cmd.Context(), a, describeRoll(r, "To be ")+" Continue?"); err != nil {
					return err
				}
				cfg.At = r.At
			}
			cfg.DryRun = false
			cfg.Progress = func(_ context.Context, r admin.RollResult) {
				l := r.Leaves[len(r.Leaves)-1]
				a.note("%s %s", l.Action, l.Name)
			}
			r, err := ad.RollOutbox(cmd.Context(), cfg)
			if err != nil && len(r.Leaves) == 0 {
				return wrongAct(err)
			}
			shown := a.show(r, func() error { return a.printRolled(r, "") })
			if err == nil {
				err = leavesAhead(r)
			}
			if err != nil {
				return wrongAct(err)
			}
			return shown
		})
	}
	return cmd
}

func (a *app) printRolled(r admin.RollResult, would string) error {
	g := grid{heads: []string{"PARTITION", "WHAT", "REMOVED", "PUT BACK", "WHY"}}
	for _, l := range r.Leaves {
		g.rows = append(g.rows, []cell{{text: l.Name}, {text: string(l.Action)}, {text: words.Number(l.Removed)},
			{text: words.Number(l.PutBack)}, {text: l.Why}})
	}
	if len(g.rows) > 0 {
		if err := g.print(a); err != nil {
			return err
		}
	}
	return a.say("%s", describeRoll(r, would))
}

func describeRoll(r admin.RollResult, before string) string {
	s := fmt.Sprintf("%smade %d, emptied %d and dropped %d leaves; removed %s messages with leaves, put back %s, "+
		"deleted %s.", before, r.Made, r.Emptied, r.Dropped, words.Number(r.Removed), words.Number(r.PutBack), words.Number(r.Deleted))
	return strings.ToUpper(s[:1]) + s[1:]
}
