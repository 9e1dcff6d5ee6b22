package ui

import (
	"fmt"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/admin"
)

// issue is something that needs attention.
type issue struct {
	Bad          bool // messages do not leave; else somebody should look some time
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
	var bad, other []issue
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
			other = append(other, issue{Text: "The forwarder " + visible(f.Name) + " waits for others to leave",
				Detail: "Its topics overlap with those of forwarders that run, since " + span(s.At.Sub(f.WaitingSince)) + ". It begins when they are stopped."})
		}
	}
	switch {
	case alive == 0 && waiting.N > 0:
		bad = append(bad, issue{Bad: true, Text: "No forwarder runs", Detail: count(waiting) + " messages wait, and nobody sends them. Start a process with a forwarder."})
	case alive == 0 && len(s.Topics) > 0:
		other = append(other, issue{Text: "No forwarder runs", Detail: "What is written next will wait. Start a process with a forwarder."})
	}
	if alive > 0 && len(vanished) > 0 {
		other = append(other, issue{Text: "Vanished without a word: " + strings.Join(vanished, ", "), Detail: "Others have taken over, or do so now. Look for a process that was killed."})
	}
	paused := map[string]bool{}
	for _, t := range s.Topics {
		for _, p := range t.PausedBy {
			paused[t.Topic] = true
			if p.By == byOperator {
				other = append(other, issue{Text: visible(t.Topic) + " is paused", Detail: "By " + visible(p.Reason) + ", for " + span(s.At.Sub(p.Since)) + ".",
					Link: actLink("resume", admin.Filter{Topic: t.Topic}), Label: "Resume", Act: true})
				continue
			}
			bad = append(bad, issue{Bad: true, Text: "The broker cannot be reached for " + visible(t.Topic),
				Detail: visible(p.By) + " tries again by itself, for " + span(s.At.Sub(p.Since)) + " now: " + visible(p.Reason)})
			break
		}
	}
	if all.Dead.N > 0 {
		other = append(other, issue{Text: messagesN(all.Dead) + " dead", Detail: "Nobody tries them again until you say so.", Link: "errors", Label: "Look at errors"})
	}
	for _, t := range s.Topics {
		if t.Oldest > longWait && !paused[t.Topic] && alive > 0 {
			what := issue{Text: "The oldest message of " + visible(t.Topic) + " waits for " + span(t.Oldest), Link: link("messages", admin.Filter{Topic: t.Topic, States: []admin.State{admin.Ready}}), Label: "Look at it"}
			if t.Failing.N > 0 {
				what.Detail, what.Link, what.Label = count(t.Failing)+" of them have failed, and are tried again.", "errors", "Look at errors"
			}
			other = append(other, what)
		}
	}
	other = append(other, judgeIncoming(s)...)
	return append(bad, other...)
}

// judgeIncoming is judge for the inbox and the queue.
func judgeIncoming(s *admin.Stats) (list []issue) {
	var dead admin.Count
	for _, c := range s.Inbox {
		dead.N, dead.More = dead.N+c.Dead.N, dead.More || c.Dead.More
	}
	for _, of := range []struct {
		in   admin.Table
		dead admin.Count
	}{{admin.Inbox, dead}, {admin.Queue, total(s.Queue).Dead}} {
		if of.dead.N > 0 {
			list = append(list, issue{Text: messagesN(of.dead) + " dead in the " + of.in.String(), Detail: "They were not handled.",
				Link: link("errors", admin.Filter{In: of.in}), Label: "Look at errors"})
		}
	}
	return list
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
		return "ok", "All is well"
	case issues[0].Bad:
		return "bad", "Messages do not leave"
	case len(issues) == 1:
		return "warn", "One thing to look at"
	}
	return "warn", fmt.Sprintf("%d things to look at", len(issues))
}
