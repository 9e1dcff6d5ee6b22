package ui

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/summary"
)

// overview shows the health at a glance.
type overview struct {
	Level, Heading string
	Issues, Folded []issue // the worst, and the rest
	Partly         bool    // some checks did not finish in time
	Counted        bool    // the figures below are known
	Tiles          []tile
	Trend          *trendChart        // nil if it could not be read
	WrittenBy      map[string]float64 // messages per second, by topic
	Topics, Queue  topicTable
	Inbox          []admin.TopicStats
	Partitions     []partitionRow
	MorePartitions int
	Forwarders     []forwarderRow
	Unread         map[string]int
	At             time.Time
	Done           *done
}

// unfolded is the number of findings shown at first, so that the figures below them stay in view.
const unfolded = 3

// Largest numbers of rows in these tables.
const (
	mostTopics     = 100
	mostPartitions = 16
)

// tile is one figure and its explanation.
type tile struct {
	Name, Value, Unit, Note string
	Alarm                   bool
	Chart                   chart
}

type topicRow struct {
	admin.TopicStats
	Level, State string
	ByOperator   bool
	Link, Change string // links to messages, and to pause or resume
	Trend        string // and to the chart
}

// topicTable has the topics that need attention most. More is the number of others.
type topicTable struct {
	Rows []topicRow
	More int64
}

// partitionRow is a partition of the outbox: Ids is its range, Holds the messages that keep it.
type partitionRow struct {
	admin.Partition
	Level, Ids, Holds string
}

type forwarderRow struct {
	admin.ForwarderStats
	Level, State string
}

// judgeTimeout is how long the page and a probe wait for the findings, and the page for the figures. Late results are
// left out.
const judgeTimeout = 10 * time.Second

func (rq *request) overview() error {
	ctx, cancel := context.WithTimeout(rq.r.Context(), judgeTimeout)
	defer cancel()
	type judged struct {
		findings []admin.Finding
		err      error
	}
	judging := make(chan judged, 1)
	go func() {
		findings, err := rq.watch.judge(ctx)
		judging <- judged{findings, err}
	}()
	s, err := rq.watch.stats(ctx)
	j := <-judging
	if err != nil && len(summary.Judge(j.findings).Problems) == 0 {
		return err
	}
	o := &overview{Issues: issues(j.findings)}
	for i, is := range o.Issues {
		if is.Act && !rq.access.Act {
			o.Issues[i].Link = ""
		}
	}
	if len(o.Issues) > unfolded+1 {
		o.Issues, o.Folded = o.Issues[:unfolded], o.Issues[unfolded:]
	}
	o.Level, o.Heading = heading(j.findings)
	if o.Partly = j.err != nil; o.Partly && o.Level == "ok" {
		o.Level, o.Heading = "warn", "Some checks did not finish"
	}
	if err == nil {
		rq.figures(o, s)
		if err := rq.trends(ctx, o, s); err != nil {
			rq.logFailure(err)
		}
	} else {
		rq.logFailure(err)
	}
	if o.Done, err = rq.done(); err != nil {
		return err
	}
	return rq.show(http.StatusOK, "overview", o)
}

// figures fills in the counts.
func (rq *request) figures(o *overview, s *admin.Stats) {
	o.Counted, o.Inbox, o.Unread, o.At = true, s.Inbox, s.UnownedLanes, s.At
	for _, p := range partitionsShown(s.Partitions) {
		o.Partitions = append(o.Partitions, partitionRowOf(p))
	}
	o.MorePartitions = len(s.Partitions) - len(o.Partitions)
	o.Tiles = tiles(total(s.Topics), rq.watch.history(), rq.cfg.SampleInterval)
	asked := rq.r.URL.Query().Get("topic")
	o.Topics, o.Queue = tableOf(admin.Outbox, s.Topics, asked), tableOf(admin.Queue, s.Queue, asked)
	for _, f := range s.Forwarders {
		row := forwarderRow{f, "ok", "running"}
		switch {
		case !f.Alive:
			row.Level, row.State = "bad", "vanished"
		case !f.WaitingSince.IsZero():
			row.Level, row.State = "warn", "waiting"
		}
		o.Forwarders = append(o.Forwarders, row)
	}
}

// tableOf lists the topics. If there are too many, it lists the requested one and those in the worst state: a page of
// 20,000 topics has 27 MB.
func tableOf(in admin.Table, topics []admin.TopicStats, asked string) (table topicTable) {
	for _, t := range topics {
		table.Rows = append(table.Rows, rowOf(in, t))
	}
	if len(table.Rows) <= mostTopics {
		return table
	}
	rank := func(row topicRow) int {
		switch {
		case row.Topic == asked:
			return 0
		case row.Level == "bad" || row.Dead.N > 0:
			return 1
		case row.Level == "warn":
			return 2
		case row.Ready.N > 0:
			return 3
		}
		return 4
	}
	slices.SortStableFunc(table.Rows, func(a, b topicRow) int { return rank(a) - rank(b) })
	table.More = int64(len(table.Rows) - mostTopics)
	table.Rows = table.Rows[:mostTopics]
	return table
}

const backlogTile = 2

// backlogOf counts ready and failing messages.
func backlogOf(t admin.TopicStats) admin.Count {
	return admin.Count{
		N: t.Ready.N + t.Failing.N, More: t.Ready.More || t.Failing.More, About: t.Ready.About || t.Failing.About,
	}
}

func tiles(now admin.TopicStats, history []sample, every time.Duration) []tile {
	whole := func(v float64) string { return number(int64(v)) }
	backlog := backlogOf(now)
	list := []tile{
		{Name: "Rate", Value: rate(now.Rate), Unit: "/s", Note: "published in the last minute",
			Chart: draw(history, every, func(s sample) float64 { return s.rate }, func(v float64) string {
				return rate(v) + "/s"
			})},
		{Name: "Lag", Value: span(now.Oldest), Note: "age of the oldest due message",
			Chart: draw(history, every, func(s sample) float64 { return s.lag }, func(v float64) string {
				return span(seconds(v))
			})},
		{Name: "Backlog", Value: count(backlog), Note: "ready or failing",
			Chart: draw(history, every, func(s sample) float64 { return s.backlog }, whole)},
		{Name: "Dead", Value: count(now.Dead), Note: "until you requeue or discard them", Alarm: now.Dead.N > 0,
			Chart: draw(history, every, func(s sample) float64 { return s.dead }, whole)},
	}
	if now.Delayed.N > 0 {
		list[backlogTile].Note += "; " + count(now.Delayed) + " more are delayed"
	}
	return list
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func rowOf(in admin.Table, t admin.TopicStats) topicRow {
	row := topicRow{
		TopicStats: t, Level: "ok", State: "active",
		Change: actLink("pause", admin.Filter{Topic: t.Topic}, "from", "overview"), Trend: trendLink(t.Topic, ""),
	}
	filter := admin.Filter{In: in, Topic: t.Topic, States: []admin.State{admin.Done}}
	for _, of := range []struct {
		state admin.State
		n     int64
	}{{admin.Delayed, t.Delayed.N}, {admin.Ready, t.Ready.N}, {admin.Failing, t.Failing.N}, {admin.Dead, t.Dead.N}} {
		if of.n > 0 {
			filter.States[0] = of.state
		}
	}
	row.Link = link("messages", filter)
	for _, p := range t.PausedBy {
		if p.By == byOperator {
			row.ByOperator, row.Change = true, actLink("resume", admin.Filter{Topic: t.Topic}, "from", "overview")
		}
	}
	switch {
	case row.ByOperator:
		row.Level, row.State = "warn", "paused"
	case t.Paused:
		row.Level, row.State = "bad", "unavailable"
	case t.Failing.N > 0:
		row.Level, row.State = "warn", "failing"
	case t.Rate == 0 && t.Ready.N == 0:
		row.Level, row.State = "idle", "idle"
	}
	return row
}

// partitionsShown picks the partitions to show: the current one, the default, then those that are held or due, and of
// these the newest.
func partitionsShown(all []admin.Partition) []admin.Partition {
	old := func(p admin.Partition) bool { return p.State == "held" || p.State == "due" }
	left := len(all) - mostPartitions
	shown := slices.Clone(all)
	for _, keepOld := range []bool{true, false} {
		shown = slices.DeleteFunc(shown, func(p admin.Partition) bool {
			if left <= 0 || p.Default || p.State == "current" || keepOld == old(p) {
				return false
			}
			left--
			return true
		})
	}
	return shown
}

func partitionRowOf(p admin.Partition) partitionRow {
	row := partitionRow{Partition: p, Level: "ok", Ids: number(p.From) + " to " + number(p.To-1)}
	if p.State != "current" {
		row.Level = "idle"
	}
	switch {
	case p.Default:
		row.Ids = "all other ids"
	case p.To == 0:
		row.Ids = "from " + number(p.From)
	case p.From == 0:
		row.Ids = "below " + number(p.To)
	}
	if p.State == "held" {
		row.Level, row.Holds = "warn", "by "+p.HeldBy()
	}
	return row
}
