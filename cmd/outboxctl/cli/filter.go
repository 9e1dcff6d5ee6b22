package cli

import (
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/summary"
	"github.com/millrace-go/watermill-outbox/internal/words"
)

// filterFlags are the flags of a Filter.
type filterFlags struct {
	in            admin.Table
	may           []admin.State
	states        []string
	after, before string
	filter        admin.Filter
}

// bind adds all flags of a Filter to a command, except --state.
func (f *filterFlags) bind(cmd *cobra.Command, in admin.Table) {
	f.in = in
	flags := cmd.Flags()
	if in != admin.Inbox {
		flags.StringVar(&f.filter.Topic, "topic", "", "only this topic")
		flags.StringVar(&f.filter.Key, "key", "", "only this ordering key")
	}
	switch in {
	case admin.Inbox:
		flags.StringVar(&f.filter.Consumer, "consumer", "", "only this consumer: service/handler")
	case admin.Queue:
		flags.StringVar(&f.filter.Consumer, "source", "", "only this source")
	}
	f.bindErrors(flags)
	flags.StringVar(&f.after, "after", "", "written since this `time`: 2006-01-02, 2006-01-02T15:04:05Z, "+
		"or an age such as 90m or 7d")
	flags.StringVar(&f.before, "before", "", "written before this `time`, whenever it died")
}

// bindStates adds --state, unless there is no choice.
func (f *filterFlags) bindStates(cmd *cobra.Command, may []admin.State, standard admin.State) {
	f.may = may
	if len(may) < 2 {
		return
	}
	names := make([]string, len(may))
	for i, s := range may {
		names[i] = string(s)
	}
	completions := cobra.FixedCompletions(slices.Clone(names), cobra.ShellCompDirectiveNoFileComp)
	if i := slices.Index(may, standard); i >= 0 {
		names[i] += " (default)"
	}
	cmd.Flags().StringSliceVar(&f.states, "state", nil, "`states`, separated by commas: "+
		strings.Join(names, ", "))
	_ = cmd.RegisterFlagCompletionFunc("state", completions) // it fails only for an unknown flag
}

func (f *filterFlags) bindErrors(flags *pflag.FlagSet) {
	flags.StringVar(&f.filter.ErrorGroup, "group", "", "only this group of outboxctl errors")
	flags.StringVar(&f.filter.ErrorContains, "error", "", "only errors with this `text`, in upper or lower case")
}

// get returns the filter for the flags and the ids.
func (f *filterFlags) get(ids []string) (admin.Filter, error) {
	filter := f.filter
	filter.In, filter.IDs = f.in, ids
	for _, s := range f.states {
		if !slices.Contains(f.may, admin.State(s)) {
			return filter, usagef("--state has %q: use %s", s, list(f.may))
		}
		filter.States = append(filter.States, admin.State(s))
	}
	now := time.Now()
	for _, t := range []struct {
		flag, value string
		to          *time.Time
	}{{"after", f.after, &filter.After}, {"before", f.before, &filter.Before}} {
		if t.value == "" {
			continue
		}
		var err error
		if *t.to, err = words.Time(t.value, now); err != nil {
			return filter, usagef("--%s: %w", t.flag, err)
		}
	}
	return filter, nil
}

// describe describes a filter in words.
func describe(f admin.Filter) string {
	parts := []string{}
	for _, w := range summary.Filter(f) {
		parts = append(parts, w[0]+" "+w[1])
	}
	if f.All {
		parts = append(parts, "all")
	}
	return strings.Join(parts, ", ")
}

func list(states []admin.State) string {
	names := make([]string, len(states))
	for i, s := range states {
		names[i] = string(s)
	}
	return strings.Join(names, ", ")
}
