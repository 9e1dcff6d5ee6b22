package ui

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/admin"
)

// issue is something that needs attention.
type issue struct {
	Bad          bool // messages are not published; else somebody should look some time
	All          bool // none of them
	Text, Detail string
	Link, Label  string
	Act          bool // the link is to an act
}

// longWait is how old the oldest message may be before it is worth a word.
const longWait = time.Minute

// byOperator is how Pause.By names an operator.
const byOperator = "operator"

// judge says what needs attention, what is worst first.
func judge(s *admin.Stats) []issue {
	bad, other := judgeForwarders(s)
	away, paused := judgePauses(s)
	other = append(other, few(paused)...)
	if dead := total(s.Topics).Dead; dead.N > 0 {
		other = append(other, issue{
			Text: messagesN(dead) + " dead", Detail: "They are not retried until you requeue them.", Link: "errors",
			Label: "Show errors",
		})
	}
	if slices.ContainsFunc(s.Forwarders, func(f admin.ForwarderStats) bool { return f.Alive }) {
		other = append(other, few(judgeSlow(admin.Outbox, s.Topics))...)
	}
	other = append(other, judgeIncoming(s)...)
	other = append(other, few(judgeSlow(admin.Queue, s.Queue))...)
	return slices.Concat(bad, few(away), other)
}

// judgeForwarders says whether a forwarder publishes, and which does not.
func judgeForwarders(s *admin.Stats) (bad, other []issue) {
	all := total(s.Topics)
	waiting := admin.Count{N: all.Ready.N + all.Failing.N, More: all.Ready.More || all.Failing.More}
	alive, vanished := 0, []string{}
	for _, f := range s.Forwarders {
		if f.Alive {
			alive++
		} else {
			vanished = append(vanished, visible(f.Name))
		}
		if !f.WaitingSince.IsZero() && f.Alive {
			other = append(other, issue{Text: "Forwarder " + visible(f.Name) + " waits for other forwarders to stop",
				Detail: "Its topics overlap with theirs. It has waited for " + span(s.At.Sub(f.WaitingSince)) +
					", and starts when they have stopped."})
		}
	}
	switch {
	case alive == 0 && waiting.N > 0:
		bad = append(bad, issue{
			Bad: true, All: true, Text: "No forwarder is running", Detail: "Pending messages: " + count(waiting) +
				". Start a process with a forwarder.",
		})
	case alive == 0 && len(s.Topics) > 0:
		other = append(other, issue{
			Text: "No forwarder is running", Detail: "New messages will stay pending. Start a process with a forwarder.",
		})
	}
	if alive > 0 && len(vanished) > 0 {
		other = append(other, issue{Text: "Forwarders vanished: " + strings.Join(vanished, ", "),
			Detail: "They stopped without releasing their leases, and others take over. Look for a process that was killed."})
	}
	return bad, other
}

// judgePauses says which topics rest, because their broker is away or an operator wants it.
func judgePauses(s *admin.Stats) (away, paused []issue) {
	for _, t := range s.Topics {
		for _, p := range t.PausedBy {
			if p.By == byOperator {
				paused = append(paused, issue{
					Text:   visible(t.Topic) + " is paused",
					Detail: "By " + visible(p.Reason) + ", for " + span(s.At.Sub(p.Since)) + ".",
					Link:   actLink("resume", admin.Filter{Topic: t.Topic}), Label: "Resume", Act: true,
				})
				continue
			}
			away = append(away, issue{Bad: true, Text: "The broker of " + visible(t.Topic) + " is unavailable",
				Detail: visible(p.By) + " has retried for " + span(s.At.Sub(p.Since)) + ", and resumes by itself: " +
					visible(p.Reason)})
			break
		}
	}
	return away, paused
}

// judgeSlow says where the oldest message should have been published, or handled, long ago.
func judgeSlow(in admin.Table, topics []admin.TopicStats) (list []issue) {
	where, ready := "", ""
	if in == admin.Queue {
		where, ready = " in the queue", "Check that a dispatcher with a handler for this topic is running."
	}
	for _, t := range topics {
		if t.Oldest <= longWait || t.Paused {
			continue
		}
		what := issue{
			Text: "The oldest message of " + visible(t.Topic) + " has waited for " + span(t.Oldest) + where, Detail: ready,
			Link:  link("messages", admin.Filter{In: in, Topic: t.Topic, States: []admin.State{admin.Ready}}),
			Label: "Show messages",
		}
		if t.Failing.N > 0 {
			what.Detail, what.Link, what.Label = "Failing, and waiting for another attempt: "+count(t.Failing)+".",
				link("errors", admin.Filter{In: in}), "Show errors"
		}
		list = append(list, what)
	}
	return list
}

// judgeIncoming says what was not handled.
func judgeIncoming(s *admin.Stats) (list []issue) {
	var dead, failing admin.Count
	var oldest admin.ConsumerStats
	for _, c := range s.Inbox {
		dead.N, dead.More = dead.N+c.Dead.N, dead.More || c.Dead.More
		if c.Oldest <= longWait {
			continue
		}
		failing.N, failing.More = failing.N+c.Failing.N, failing.More || c.Failing.More
		if c.Oldest > oldest.Oldest {
			oldest = c
		}
	}
	for _, of := range []struct {
		in   admin.Table
		dead admin.Count
	}{{admin.Inbox, dead}, {admin.Queue, total(s.Queue).Dead}} {
		if of.dead.N > 0 {
			list = append(list, issue{
				Text: messagesN(of.dead) + " dead in the " + of.in.String(), Detail: "They were not handled.",
				Link: link("errors", admin.Filter{In: of.in}), Label: "Show errors",
			})
		}
	}
	if failing.N > 0 {
		list = append(list, issue{Text: messagesN(failing) + " failing in the inbox",
			Detail: "The oldest, of " + visible(oldest.Consumer) + ", for " + span(oldest.Oldest) +
				". Their broker redelivers them; one that it does not redeliver stays failing until you discard it.",
			Link: link("messages", admin.Filter{In: admin.Inbox, States: []admin.State{admin.Failing}}), Label: "Show messages"})
	}
	return list
}

// few leaves the first of many issues that say the same of one topic after another.
func few(list []issue) []issue {
	const most = 3
	more := len(list) - most
	if more < 2 {
		return list
	}
	return append(list[:most:most], issue{
		Bad: list[0].Bad, Text: strconv.Itoa(more) + " more topics have the same problem", Detail: "See the table below.",
	})
}

// messagesN is how many messages there are.
func messagesN(c admin.Count) string {
	if c.N == 1 && !c.More {
		return "1 message is"
	}
	return count(c) + " messages are"
}

// total adds the figures of topics.
func total(topics []admin.TopicStats) (all admin.TopicStats) {
	add := func(to *admin.Count, c admin.Count) { to.N, to.More = to.N+c.N, to.More || c.More }
	for _, t := range topics {
		add(&all.Ready, t.Ready)
		add(&all.Failing, t.Failing)
		add(&all.Delayed, t.Delayed)
		add(&all.Dead, t.Dead)
		all.Rate += t.Rate
		all.Oldest = max(all.Oldest, t.Oldest)
	}
	return all
}

// heading sums issues up.
func heading(issues []issue) (level, text string) {
	switch {
	case len(issues) == 0:
		return "ok", "Healthy"
	case issues[0].All:
		return "bad", "No messages are published"
	case issues[0].Bad:
		return "bad", "Some messages are not published"
	case len(issues) == 1:
		return "warn", "1 warning"
	}
	return "warn", fmt.Sprintf("%d warnings", len(issues))
}
