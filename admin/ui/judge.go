package ui

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/summary"
)

// issue is a finding on the page.
type issue struct {
	Level, Text, Detail, Cure string
	Link, Label               string
	Act                       bool // the link is to an act
}

// byOperator is how Pause.By names an operator.
const byOperator = "operator"

// issues converts findings, worst first. Of similar findings it shows the first, and the number of others.
func issues(findings []admin.Finding) (list []issue) {
	type kind struct {
		check string
		in    admin.Table
	}
	alike, shown := map[kind]int{}, map[kind]int{}
	for _, f := range findings {
		alike[kind{f.Check, f.In}]++
	}
	for _, f := range findings {
		of := kind{f.Check, f.In}
		shown[of]++
		more := alike[of] - 1
		if more > 1 && shown[of] == 2 {
			list = append(list, issue{
				Level: severities[f.Severity], Text: fmt.Sprintf("%s (%d more)", sentence(f.Title), more),
				Detail: "outboxctl doctor lists them all.",
			})
		}
		if more > 1 && shown[of] > 1 {
			continue
		}
		is := issue{
			Level: severities[f.Severity], Text: sentence(f.Title), Detail: sentence(f.Evidence) + ".",
			Cure: sentence(short(f.Cure)) + ".",
		}
		if f.Subject != "" {
			is.Text += ": " + visible(f.Subject)
		}
		is.lead(f)
		list = append(list, is)
	}
	return list
}

// lead links to the page that shows the problem or fixes it.
func (is *issue) lead(f admin.Finding) {
	switch f.Check {
	case "dead", "failing":
		is.Link, is.Label = link("errors", admin.Filter{In: f.In}), "Show errors"
	case "topic_paused":
		is.Link, is.Label, is.Act = actLink("resume", admin.Filter{Topic: f.Subject}), "Resume", true
	case "backlog", "topic_unread", "queue_waits":
		is.Link = link("messages", admin.Filter{In: f.In, Topic: f.Subject, States: []admin.State{admin.Ready}})
		is.Label = "Show messages"
	}
}

var severities = map[admin.Severity]string{admin.Info: "idle", admin.Warning: "warn", admin.Critical: "bad"}

// heading summarises the findings.
func heading(findings []admin.Finding) (level, text string) {
	h := summary.Judge(findings)
	if level = severities[h.Severity]; h.Severity == admin.Info {
		level = "ok"
	}
	return level, sentence(h.String())
}

// short omits a long statement: the page offers the act itself.
func short(cure string) string {
	const most = 400
	if len(cure) <= most {
		return cure
	}
	if at := strings.LastIndex(cure[:most], "; "); at > 0 {
		return cure[:at]
	}
	return strings.ToValidUTF8(cure[:most], "") + "…"
}

// sentence capitalises the first letter.
func sentence(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	return visible(string(unicode.ToUpper(r)) + s[n:])
}

// total adds the figures of topics.
func total(topics []admin.TopicStats) (all admin.TopicStats) {
	add := func(to *admin.Count, c admin.Count) {
		to.N, to.More, to.About = to.N+c.N, to.More || c.More, to.About || c.About
	}
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
