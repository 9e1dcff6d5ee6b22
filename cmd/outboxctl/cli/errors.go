package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace-go/watermill-outbox/admin"
)

func (a *app) errors() *cobra.Command {
	var f filterFlags
	in := admin.Outbox
	cmd := &cobra.Command{
		Use: "errors", Short: "Group dead and failing messages by their error",
		Long: `Group dead and failing messages by their error, the largest group first: errors that differ in numbers, ids and quoted text alone
are one. It looks at the newest 10,000 messages of each topic and state; a plus says that there may be more of a group.

To act on a whole group: outboxctl messages requeue --group GROUP, or outboxctl inbox, outboxctl queue.`,
		Example: "  outboxctl errors --state dead\n  outboxctl messages requeue --group 1b4c7e2f90ad5d31 --dry-run",
	}
	f.bind(cmd, ofOutbox)
	f.bindStates(cmd, []admin.State{admin.Dead, admin.Failing}, "")
	cmd.Flags().TextVar(&in, "in", admin.Outbox, "`table`: outbox, inbox or queue")
	cmd.Flags().StringVar(&f.filter.Consumer, "consumer", "", "of this consumer of the inbox, or source of the queue")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f.of.in = in
		filter, err := f.get(nil)
		if err != nil {
			return err
		}
		return a.with(cmd.Context(), "", func(ad *admin.Admin) error {
			groups, err := ad.ErrorGroups(cmd.Context(), filter)
			if err != nil {
				return err
			}
			return a.show(map[string]any{"groups": groups}, func() error { return a.printGroups(groups) })
		})
	}
	return cmd
}

func (a *app) printGroups(groups []admin.ErrorGroup) error {
	g := grid{heads: []string{"GROUP", "COUNT", "FIRST", "LAST", "TOPICS", "ERROR"}, empty: "no errors"}
	for _, e := range groups {
		g.rows = append(g.rows, plain(e.ID, number(e.Count), since(e.First), since(e.Last), strings.Join(e.Topics, ", "), e.Text))
	}
	return g.print(a)
}
