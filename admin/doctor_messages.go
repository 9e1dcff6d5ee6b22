package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// checkTopics reports messages that are ready and not published.
func (e *doctorRun) checkTopics(ctx context.Context) (err error) {
	defer func() {
		var lives, waits bool
		if err != nil && e.rows(ctx, []any{&lives, &waits}, func() {}, sqltext.CheckAlive) == nil && waits && !lives {
			e.noForwarder(nil)
		}
	}()
	if e.stats, err = e.Admin.stats(ctx, brisk); err != nil {
		return err
	}
	e.pauses()
	ready := map[string]TopicStats{}
	for _, statement := range []string{sqltext.CountReady, sqltext.CountDelayed} {
		var topic string
		var c Count
		var oldest float64
		var state State
		err = e.rows(ctx, []any{&topic, &c.N, &c.More, &oldest, &state}, func() {
			if r := ready[topic]; state == Ready && seconds(oldest) > brief {
				ready[topic] = TopicStats{
					Topic: topic, Ready: Count{N: r.Ready.N + c.N, More: r.Ready.More || c.More},
					Oldest: max(r.Oldest, seconds(oldest)),
				}
			}
		}, statement, brisk.lane)
		if err != nil {
			return err
		}
	}
	switch {
	case !e.counted:
		return nil // it is unknown which forwarder reads which topic
	case !slices.ContainsFunc(e.members, member.alive):
		e.noForwarder(ready)
		return nil
	}
	for _, t := range e.stats.Topics {
		r, waits := ready[t.Topic]
		switch {
		case !waits || t.Paused:
		case !slices.ContainsFunc(e.members, func(m member) bool { return m.reads(t.Topic) }):
			e.findOf(Outbox, t.Topic, "topic_unread", max(Warning, byAge(r.Oldest)),
				fmt.Sprintf("%s, the oldest for %s, and no running forwarder reads this topic",
					messages(r.Ready, ofTopic(t.Topic), "is ready", "are ready"), span(r.Oldest)),
				fmt.Sprintf("add %q to forwarder.Config.Topics, or run a forwarder that reads it", t.Topic))
		default:
			if err := e.backlog(ctx, t, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// noForwarderCritical is how long messages may be ready without any forwarder before the finding is critical.
const noForwarderCritical = 2 * time.Minute

// noForwarder adds the finding that no forwarder is running. ready is nil if messages have been ready for more than a
// minute, and nothing else is known.
func (e *doctorRun) noForwarder(ready map[string]TopicStats) {
	if e.commitsWait {
		return // they cannot renew their leases
	}
	s, what := Info, "no message has been ready for more than "+span(brief)
	if ready == nil {
		s, what = Warning, "messages have been ready for more than a minute"
	}
	for _, r := range ready {
		age := Warning
		if r.Oldest >= noForwarderCritical {
			age = Critical
		}
		if age >= s {
			s, what = age, fmt.Sprintf("messages of topic %q have been ready for %s", r.Topic, span(r.Oldest))
		}
	}
	if n := len(e.members); n > 0 {
		m := e.members[n-1]
		what += fmt.Sprintf("; the lease of %s expired %s ago", m, span(-m.left))
	}
	e.find("forwarders", s, "no forwarder is running; "+what,
		"run a forwarder.Forwarder, a Subscriber, or outboxctl forward on these tables; if one should be running, "+
			"see its log for the reason it did not start")
}

// checkFailing reports messages that have failed several times, one finding per error whatever the topic.
func (e *doctorRun) checkFailing(ctx context.Context) error {
	type trouble struct {
		first           int64
		attempts, count int
		key, error      string
		age             time.Duration
		keys            map[string]bool
		topics          []string
	}
	found := map[string]*trouble{}
	var order []string
	var id int64
	var topic, key, last string
	var attempts int
	var age float64
	err := e.rows(ctx, []any{&id, &topic, &key, &attempts, &last, &age}, func() {
		group := groupID(last)
		t := found[group]
		if t == nil {
			t = &trouble{first: id, attempts: attempts, key: key, error: text.Redact(last), keys: map[string]bool{}}
			found[group] = t
			order = append(order, group)
		}
		t.count, t.age = t.count+1, max(t.age, seconds(age))
		if key != "" {
			t.keys[key] = true
		}
		if !slices.Contains(t.topics, topic) {
			t.topics = append(t.topics, topic)
		}
	}, sqltext.DoctorFailing, int64(sampleSize), int64(often))
	for _, group := range order[:min(len(order), mostGroups)] {
		t := found[group]
		blocked, skip, subject := "", "", ""
		if n := len(t.keys); n > 0 {
			blocked = fmt.Sprintf(" (blocked keys: %d)", n)
		}
		if t.key != "" {
			skip = "skip it if it is the first of its key" +
				e.command("keys skip --key", shell(t.key), "--reason WHY") + ", else "
		}
		again := e.command("outbox retry-now --group", group)
		if len(t.topics) == 1 {
			subject = t.topics[0]
			again = e.command("outbox retry-now --topic", shell(subject), "--group", group)
		}
		e.findOf(Outbox, subject, "failing", max(Warning, byAge(t.age)),
			fmt.Sprintf("%s%s, the oldest for %s: the first, %d, failed %d times, last with %q",
				messages(Count{N: int64(t.count)}, ofTopics(t.topics), "keeps failing", "keep failing"), blocked, span(t.age),
				t.first, t.attempts, t.error),
			fmt.Sprintf("fix the cause that the error names, and retry now%s; or, if it must never be published, %sdiscard "+
				"it%s: %s",
				again, skip, e.command("outbox discard", fmt.Sprint(t.first), "--state failing --reason WHY"),
				strings.ReplaceAll(e.db.Render(sqltext.DiscardByHand), "{id}", fmt.Sprint(t.first))))
	}
	return err
}

// checkIncoming reports messages of the inbox and the queue that have been failing for a while.
func (e *doctorRun) checkIncoming(ctx context.Context) error {
	for _, in := range []Table{Inbox, Queue} {
		owner, since, b := "topic", "written %s ago", brisk
		cure := "fix the cause that the error names; they are retried until they are handled or dead"
		b.attempts = often
		if in == Inbox { // the row dates from the first failure, or from a requeue that no failure followed
			owner, since, b.attempts = "consumer", "for %s", 1
			cure += "; a message that its broker does not redeliver stays failing until you discard it"
		}
		groups, err := e.groups(ctx, Filter{In: in, States: []State{Failing}}, b)
		if err != nil {
			return err
		}
		for _, g := range groups[:min(len(groups), mostGroups)] {
			if age := time.Since(g.First); age > slow {
				act := ""
				if in == Inbox {
					act = e.command("inbox discard --state failing --group", g.ID, "--reason WHY")
				}
				e.findOf(in, "", "failing", Warning, fmt.Sprintf("%s, %s %s, the oldest %s, with %q",
					messages(g.Count, "of the "+in.String(), "keeps failing", "keep failing"), owner,
					strings.Join(g.Topics[:min(len(g.Topics), 5)], ", "), fmt.Sprintf(since, span(age)), g.Example),
					cure+act)
			}
		}
	}
	return nil
}

// command is the outboxctl command for an act, in parentheses. It is empty if a word of it is empty: no flag selects
// the group of messages without an error.
func (e *doctorRun) command(words ...string) string {
	if slices.Contains(words, "") {
		return ""
	}
	names := e.db.Tables().WithDefaults()
	usual := sqltext.Tables{Schema: names.Schema, Outbox: names.Outbox}.WithDefaults()
	var tables []string
	for _, t := range [][3]string{
		{"schema", names.Schema, ""}, {"outbox", names.Outbox, "outbox"}, {"lanes", names.Lanes, usual.Lanes},
		{"forwarders", names.Forwarders, usual.Forwarders},
		{"migrations", names.Migrations, usual.Migrations}, {"inbox", names.Inbox, usual.Inbox},
		{"queue", names.Queue, usual.Queue}, {"audit", names.Audit, usual.Audit},
		{"idempotency", names.Idempotency, usual.Idempotency},
	} {
		if t[1] != t[2] {
			tables = append(tables, t[0]+"="+t[1])
		}
	}
	if len(tables) > 0 {
		words = slices.Insert(words, 0, "--tables "+shell(strings.Join(tables, ",")))
	}
	return " (outboxctl " + strings.Join(words, " ") + ")"
}

// commands are the outboxctl subcommands by table.
var commands = map[Table]string{Outbox: "outbox", Inbox: "inbox", Queue: "queue"}

func ofTopic(topic string) string { return fmt.Sprintf("of topic %q", topic) }

// ofTopics names the first few topics.
func ofTopics(topics []string) string {
	const most = 5
	switch n := len(topics); {
	case n == 1:
		return ofTopic(topics[0])
	case n > most:
		return fmt.Sprintf("of %d topics (%s, ...)", n, strings.Join(inQuotes(topics[:most]), ", "))
	}
	return "of topics " + strings.Join(inQuotes(topics), ", ")
}

func inQuotes(names []string) []string {
	list := make([]string, len(names))
	for i, n := range names {
		list[i] = fmt.Sprintf("%q", n)
	}
	return list
}

const (
	slow       = time.Minute // time in which a ready message should be published
	sampleSize = 1000        // failing messages
	often      = 3           // attempts
	mostGroups = 10
)

// checkDead reports dead messages.
func (e *doctorRun) checkDead(ctx context.Context) error {
	for _, in := range []Table{Outbox, Inbox, Queue} {
		groups, err := e.groups(ctx, Filter{In: in, States: []State{Dead}}, brisk)
		if err != nil {
			return err
		}
		for _, g := range groups[:min(len(groups), mostGroups)] {
			again, owner, then := requeue.Name, "topic", ""
			if in == Inbox {
				again, owner, then = redrive.Name, "consumer", ", which publishes the original messages again"
			}
			cure := "fix the cause, then " + again + " them" + e.command(commands[in], again+" --group", g.ID) + then +
				", or discard them" + e.command(commands[in], "discard --group", g.ID, "--reason WHY")
			e.findOf(in, "", "dead", Warning, fmt.Sprintf("%s, %s %s, the newest with %q",
				messages(g.Count, "of the "+in.String(), "is dead", "are dead"), owner,
				strings.Join(g.Topics[:min(len(g.Topics), 5)], ", "), g.Example), cure)
		}
	}
	return nil
}

// checkDiscarded reports how many messages DeadRetention has discarded in the last day.
func (e *doctorRun) checkDiscarded(ctx context.Context) error {
	var table string
	var n int
	return e.rows(ctx, []any{&table, &n}, func() {
		var in Table
		if in.UnmarshalText([]byte(table)) != nil {
			return
		}
		state := Discarded
		if in == Queue {
			state = Done
		}
		e.findOf(in, "", "dead_discarded", Info, fmt.Sprintf("%s of the %s discarded by DeadRetention in the last 24 hours",
			count(n, "message"), in),
			"see their errors"+e.command(commands[in], "list --state", string(state))+
				"; fix the cause and requeue dead messages before they reach that age")
	}, sqltext.DoctorDiscarded, sqltext.DeadRetention)
}
