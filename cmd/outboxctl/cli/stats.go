package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/charmbracelet/colorprofile"
	"github.com/spf13/cobra"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/words"
)

func (a *app) stats() *cobra.Command {
	var exact, watch bool
	var interval time.Duration
	cmd := &cobra.Command{
		Use: "stats", Short: "Print backlog, age and rate of topics, forwarders, inbox and queue",
		Long: `Print backlog, age and rate of topics, forwarders, inbox and queue. Counts stop at 10,000, or earlier with
several topics, and then have a plus.`,
	}
	cmd.Flags().BoolVar(&exact, "exact", false, "count every row; takes seconds with millions of rows")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "repeat until interrupted")
	cmd.Flags().DurationVar(&interval, "interval", 2*time.Second, "interval of --watch")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if interval < 100*time.Millisecond {
			return usagef("--interval is %s: use 100ms or more", interval)
		}
		return a.with(cmd.Context(), "", func(ad *admin.Admin) error {
			read := func() (*admin.Stats, error) { return ad.Stats(cmd.Context(), admin.StatsConfig{Exact: exact}) }
			if watch {
				return a.watch(cmd.Context(), interval, read)
			}
			s, err := read()
			if err != nil {
				return err
			}
			return a.show(s, func() error { return a.printStats(s) })
		})
	}
	return cmd
}

// watch prints the stats until it is interrupted, which is not an error then. If the database cannot be reached for a
// while, it prints that.
func (a *app) watch(ctx context.Context, interval time.Duration, read func() (*admin.Stats, error)) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		s, err := read()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			a.complain("%v", err)
		case a.isJSON():
			err = a.json(s, true)
		default:
			err = a.redraw(s)
		}
		if s != nil && err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// redraw replaces the previous stats on a terminal.
func (a *app) redraw(s *admin.Stats) error {
	if a.world.Width == nil || a.world.Width() == 0 {
		if err := a.printStats(s); err != nil {
			return err
		}
		return a.say("")
	}
	var page strings.Builder
	off := *a
	off.out = &colorprofile.Writer{Forward: &page, Profile: a.out.Profile}
	if err := off.printStats(s); err != nil {
		return err
	}
	const home, eraseLine, eraseBelow = "\x1b[H", "\x1b[K", "\x1b[J"
	_, err := fmt.Fprint(a.world.Out, home, strings.ReplaceAll(page.String(), "\n", eraseLine+"\n"), eraseBelow)
	return err
}

func (a *app) printStats(s *admin.Stats) error {
	grids := []grid{topicGrid("Outbox", s.Topics), forwarderGrid(s)}
	if len(s.Queue) > 0 {
		grids = append(grids, topicGrid("Queue", s.Queue))
	}
	if len(s.Inbox) > 0 {
		grids = append(grids, consumerGrid(s.Inbox))
	}
	if len(s.Partitions) > 0 {
		grids = append(grids, partitionGrid("Partitions of the outbox", s.Partitions))
	}
	for i, g := range grids {
		if i > 0 {
			if err := a.say(""); err != nil {
				return err
			}
		}
		if err := g.print(a); err != nil {
			return err
		}
	}
	return nil
}

func topicGrid(title string, topics []admin.TopicStats) grid {
	g := grid{
		title: title, heads: []string{
			"TOPIC", "READY", "FAILING", "ATTEMPTS>3", "DELAYED", "DEAD", "OLDEST", "RATE/s", "PAUSED BY",
		}, empty: "nothing is pending, and nothing was published recently",
	}
	for _, t := range topics {
		oldest := ""
		if t.Ready.N+t.Failing.N > 0 {
			oldest = words.Age(t.Oldest)
		}
		by := make([]string, len(t.PausedBy))
		for i, p := range t.PausedBy {
			by[i] = p.By + " for " + since(p.Since)
			if p.Reason != "" {
				by[i] += ": " + p.Reason
			}
		}
		g.rows = append(g.rows, []cell{
			{text: t.Topic}, {text: number(t.Ready)}, {number(t.Failing), nonzero(t.Failing, admin.Failing)},
			{number(t.FailingOften), nonzero(t.FailingOften, admin.Failing)}, {text: number(t.Delayed)},
			{number(t.Dead), nonzero(t.Dead, admin.Dead)}, {text: oldest}, {text: strconv.FormatFloat(t.Rate, 'f', 1, 64)},
			{strings.Join(by, "; "), yellow},
		})
	}
	return g
}

func forwarderGrid(s *admin.Stats) grid {
	g := grid{
		title: "Forwarders", heads: []string{"NAME", "LANES", "LEASE", "SCOPE", "WAITING", "TOPICS"},
		empty: "none is running",
	}
	for _, f := range s.Forwarders {
		lease := cell{text: words.Age(f.LeaseLeft)}
		if !f.Alive {
			lease = cell{"vanished " + words.Age(-f.LeaseLeft) + " ago", red}
		}
		topics := strings.Join(f.Topics, ", ")
		if topics == "" {
			topics = "all"
		}
		g.rows = append(g.rows, []cell{
			{text: f.Name}, {text: strconv.Itoa(f.Lanes)}, lease, {text: f.Scope}, {since(f.WaitingSince), yellow},
			{text: topics},
		})
	}
	if alive := func(f admin.ForwarderStats) bool {
		return f.Alive
	}; !slices.ContainsFunc(s.Forwarders, alive) && len(g.rows)+len(s.UnownedLanes) > 0 {
		g.title += ": " + g.empty
	}
	for _, scope := range slices.Sorted(maps.Keys(s.UnownedLanes)) {
		g.rows = append(g.rows, []cell{{"none", red}, {strconv.Itoa(s.UnownedLanes[scope]), red}, {}, {text: scope}, {}, {}})
	}
	return g
}

func consumerGrid(consumers []admin.TopicStats) grid {
	g := grid{title: "Inbox", heads: []string{"CONSUMER", "FAILING", "ATTEMPTS>3", "DEAD", "OLDEST"}}
	for _, c := range consumers {
		oldest := ""
		if c.Failing.N > 0 {
			oldest = words.Age(c.Oldest)
		}
		g.rows = append(g.rows, []cell{
			{text: c.Consumer}, {number(c.Failing), nonzero(c.Failing, admin.Failing)},
			{number(c.FailingOften), nonzero(c.FailingOften, admin.Failing)}, {number(c.Dead), nonzero(c.Dead, admin.Dead)},
			{text: oldest},
		})
	}
	return g
}
