package cli

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace-go/watermill-outbox/admin"
)

func (a *app) errors() *cobra.Command {
	var f filterFlags
	var in string
	cmd := &cobra.Command{
		Use: "errors", Short: "Group dead and failing messages by their error",
		Long: `Group dead and failing messages by their error, largest group first. Errors that differ only in
numbers, ids and quoted text are one group. It reads the newest 10,000 messages of each state and table
(a plus: there may be more).`,
		Example: "  outboxctl outbox requeue --group 1b4c7e2f90ad5d31 --dry-run",
	}
	f.bind(cmd, admin.Outbox)
	f.bindStates(cmd, []admin.State{admin.Dead, admin.Failing}, "")
	cmd.Flags().StringVar(&in, "in", "", "`table`: outbox, inbox or queue (default: all that have the other flags)")
	cmd.Flags().StringVar(&f.filter.Consumer, "consumer", "", "only this consumer of the inbox, or source of the queue")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		filter, err := f.get(nil)
		if err != nil {
			return err
		}
		tables := tablesFor(filter)
		if in != "" {
			tables = make([]admin.Table, 1)
			if err := tables[0].UnmarshalText([]byte(in)); err != nil {
				return usagef("--in: %w", err)
			}
		}
		return a.with(cmd.Context(), "", func(ad *admin.Admin) error {
			groups, err := groupErrors(cmd.Context(), ad, filter, tables)
			if err != nil {
				return err
			}
			return a.show(map[string]any{"groups": groups}, func() error { return a.printGroups(groups) })
		})
	}
	return cmd
}

// tablesFor returns the tables to which the filter applies.
func tablesFor(f admin.Filter) []admin.Table {
	var tables []admin.Table
	if f.Consumer == "" {
		tables = append(tables, admin.Outbox)
	}
	if f.Topic == "" && f.Key == "" {
		tables = append(tables, admin.Inbox)
	}
	return append(tables, admin.Queue)
}

// errorGroup is a group and its table.
type errorGroup struct {
	In admin.Table `json:"in"`
	admin.ErrorGroup
}

func groupErrors(ctx context.Context, ad *admin.Admin, f admin.Filter, tables []admin.Table) ([]errorGroup, error) {
	groups := []errorGroup{} // [] in JSON, not null
	for _, in := range tables {
		f.In = in
		found, err := ad.ErrorGroups(ctx, f)
		if err != nil {
			return nil, err
		}
		for _, g := range found {
			groups = append(groups, errorGroup{in, g})
		}
	}
	slices.SortStableFunc(groups, func(x, y errorGroup) int { return cmp.Compare(y.Count.N, x.Count.N) })
	return groups, nil
}

func (a *app) printGroups(groups []errorGroup) error {
	g := grid{heads: []string{"GROUP", "IN", "COUNT", "FIRST", "LAST", "TOPICS OR CONSUMERS", "ERROR"}, empty: "no errors"}
	for _, e := range groups {
		g.rows = append(g.rows, plain(e.ID, e.In.String(), number(e.Count), since(e.First), since(e.Last),
			strings.Join(e.Topics, ", "), e.Text))
	}
	return g.print(a)
}
