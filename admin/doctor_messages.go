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

// checkTopics looks at what is ready and is not published.
func (e *exam) checkTopics(ctx context.Context) (err error) {
	defer func() {
		if err != nil && e.deserted && !slices.ContainsFunc(e.members, member.alive) {
			e.noForwarder(nil)
		}
	}()
	if e.stats, err = e.Admin.stats(ctx, brisk); err != nil {
		return err
	}
	for _, t := range e.stats.Topics {
		for _, p := range t.PausedBy {
			e.paused(t, p)
		}
	}
	ready := map[string]TopicStats{}
	var topic string
	var c Count
	var oldest float64
	var failing bool
	err = e.rows(ctx, []any{&topic, &c.N, &c.More, &oldest, &failing}, func() {
		if !failing && seconds(oldest) > brief {
			ready[topic] = TopicStats{Topic: topic, Ready: c, Oldest: seconds(oldest)}
		}
	}, sqltext.CountReady, brisk.lane)
	if err != nil {
		return err
	}
	switch {
	case !e.counted && !e.deserted:
		return nil // which forwarder reads which topic is not known
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

// paused tells of a topic that rests.
func (e *exam) paused(t TopicStats, p Pause) {
	age := e.stats.At.Sub(p.Since)
	if p.By == byOperator {
		topic := shell(t.Topic)
		if strings.HasPrefix(t.Topic, "-") {
			topic = "-- " + topic
		}
		e.findOf(Outbox, t.Topic, "topic_paused", Info,
			fmt.Sprintf("an operator paused topic %q %s ago (%s); %s", t.Topic, span(age), p.Reason,
				messages(t.Ready, "of it", "is ready", "are ready")),
			"resume it when its messages may be published"+e.command("topics resume", topic)+
				": DELETE FROM "+e.db.Render("{outbox_topics}")+
				" WHERE forwarder = '00000000-0000-0000-0000-000000000000' AND topic = "+literal(t.Topic))
		return
	}
	e.findOf(Outbox, t.Topic, "topic_unavailable", max(Warning, byAge(age)),
		fmt.Sprintf("forwarder %q could not publish to topic %q for %s: %s; %s", p.By, t.Topic, span(age), p.Reason,
			messages(t.Ready, "of it", "is ready", "are ready")),
		"fix what the error names; the forwarder then resumes the topic by itself, and charges no attempt")
}

// noForwarder tells that none is running.
func (e *exam) noForwarder(ready map[string]TopicStats) {
	s, what := Info, "no message has been ready for more than "+span(brief)
	if e.deserted {
		s, what = Warning, "messages have been ready for more than a minute"
	}
	for _, r := range ready {
		if age := max(Warning, byAge(r.Oldest)); age >= s {
			s, what = age, fmt.Sprintf("messages of topic %q have been ready for %s", r.Topic, span(r.Oldest))
		}
	}
	if n := len(e.members); n > 0 {
		m := e.members[n-1]
		what += fmt.Sprintf("; the lease of %s expired %s ago", m, span(-m.left))
	}
	e.find("forwarders", s, "no forwarder is running; "+what,
		"run a forwarder.Forwarder, a Subscriber, or outboxctl forward on these tables; if one should be running, "+
			"its log says why it did not start")
}

// backlog tells of messages that are ready for long though a forwarder reads them.
func (e *exam) backlog(ctx context.Context, t, ready TopicStats) error {
	if ready.Oldest < slow {
		return nil
	}
	var written float64
	err := e.rows(ctx, []any{&written}, func() {}, sqltext.DoctorWritten, t.Topic, int64(rateSample))
	evidence := fmt.Sprintf("%s, the oldest for %s; %.1f per second are published",
		messages(ready.Ready, ofTopic(t.Topic), "is ready", "are ready"), span(ready.Oldest), t.Rate)
	s := Warning
	if written > t.Rate {
		evidence += fmt.Sprintf(" and %.1f per second are written: the backlog grows", written)
		s = byAge(ready.Oldest)
	}
	cure := "raise forwarder.Config.Concurrency, or run more forwarders; messages without a key are published in parallel"
	for _, u := range e.stats.Unread {
		if slices.ContainsFunc(e.members, func(m member) bool { return m.scope == u.Scope && m.reads(t.Topic) }) {
			evidence += fmt.Sprintf("; no forwarder reads %d of the 64 lanes of scope %s", u.Lanes, u.Scope)
			cure = "check the log of the forwarders of that scope: they take over lanes within the LeaseTTL of a forwarder " +
				"that stopped; restart them if the log does not say why not"
		}
	}
	if t.Failing.N > 0 || t.Dead.N > 0 {
		evidence += "; some may wait behind a failing message of their key"
	}
	e.findOf(Outbox, t.Topic, "backlog", s, evidence, cure)
	return err
}

// checkFailing looks at messages that have failed several times.
func (e *exam) checkFailing(ctx context.Context) error {
	type trouble struct {
		first           int64
		attempts, count int
		key, error      string
		keys            map[string]bool
	}
	found := map[[2]string]*trouble{}
	var order [][2]string
	var id int64
	var topic, key, last string
	var attempts int
	err := e.rows(ctx, []any{&id, &topic, &key, &attempts, &last}, func() {
		group := [2]string{topic, groupID(last)}
		t := found[group]
		if t == nil {
			t = &trouble{first: id, attempts: attempts, key: key, error: text.Redact(last), keys: map[string]bool{}}
			found[group] = t
			order = append(order, group)
		}
		if t.count++; key != "" {
			t.keys[key] = true
		}
	}, sqltext.DoctorFailing, int64(looked), int64(often))
	for _, group := range order[:min(len(order), mostGroups)] {
		t := found[group]
		blocked, skip := "", ""
		if n := len(t.keys); n > 0 {
			blocked = fmt.Sprintf(" (blocked keys: %d)", n)
		}
		if t.key != "" {
			skip = "skip it if it is the first of its key" +
				e.command("keys skip --key", shell(t.key), "--reason WHY") + ", else "
		}
		e.find("failing", Warning,
			fmt.Sprintf("%s%s: the first, %d, failed %d times, last with %q",
				messages(Count{N: int64(t.count)}, ofTopic(group[0]), "keeps failing", "keep failing"), blocked, t.first,
				t.attempts, t.error),
			fmt.Sprintf("fix what the error names, and retry now%s; or, if it must never be published, %sdiscard it%s: %s",
				e.command("messages retry-now --topic", shell(group[0]), "--group", group[1]), skip,
				e.command("messages discard", fmt.Sprint(t.first), "--state failing --reason WHY"),
				strings.ReplaceAll(e.db.Render(sqltext.DiscardByHand), "{id}", fmt.Sprint(t.first))))
	}
	return err
}

// checkIncoming looks at messages that came in and have been failing for a while.
func (e *exam) checkIncoming(ctx context.Context) error {
	for _, in := range []Table{Inbox, Queue} {
		owner, since, b := "topic", "written %s ago", brisk
		cure := "fix what the error names; they are retried until they are handled or dead"
		b.attempts = often
		if in == Inbox { // a row is there since the first failure, or since it was revived and has not failed again
			owner, since, b.attempts = "consumer", "for %s", 1
			cure += "; one that its broker does not redeliver stays failing until you discard it"
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

// command is what to type for an act, in brackets. It is left out if a word of it is empty: no flag names the group of
// messages that have no error.
func (e *exam) command(words ...string) string {
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

// commands are what follows outboxctl for a table.
var commands = map[Table]string{Outbox: "messages", Inbox: "inbox", Queue: "queue"}

func ofTopic(topic string) string { return fmt.Sprintf("of topic %q", topic) }

const (
	slow       = time.Minute // to leave
	looked     = 1000        // failing messages
	often      = 3           // attempts
	mostGroups = 10
)

// checkDead looks at dead messages.
func (e *exam) checkDead(ctx context.Context) error {
	now, err := e.now(ctx)
	if err != nil {
		return err
	}
	for _, in := range []Table{Outbox, Inbox, Queue} {
		groups, err := e.groups(ctx, Filter{In: in, States: []State{Dead}}, brisk)
		if err != nil {
			return err
		}
		for _, g := range groups[:min(len(groups), mostGroups)] {
			owner, then, byHand := "topic", "", ""
			switch in {
			case Outbox:
				var topics []string
				for _, topic := range g.Topics {
					topics = append(topics, literal(topic))
				}
				byHand =
					"; this statement requeues all dead messages of these topics, whatever their error, a thousand at a time: " +
						strings.NewReplacer("{time}", stamp(now), "{topics}", strings.Join(topics, ", ")).Replace(
							e.db.Render(sqltext.RequeueByHand))
			case Inbox:
				owner, then = "consumer", " and have them delivered again (replay them if this outbox published them)"
			}
			cure := "fix the cause, then requeue them" + e.command(commands[in], "requeue --group", g.ID) + then +
				", or discard them" + e.command(commands[in], "discard --group", g.ID, "--reason WHY") + byHand
			e.findOf(in, "", "dead", Warning, fmt.Sprintf("%s, %s %s, the newest with %q",
				messages(g.Count, "of the "+in.String(), "is dead", "are dead"), owner,
				strings.Join(g.Topics[:min(len(g.Topics), 5)], ", "), g.Example), cure)
		}
	}
	return nil
}
