package ui

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/summary"
	words_ "github.com/millrace-go/watermill-outbox/internal/words"
)

// parseFilter reads a filter from the query or the form of a request.
func parseFilter(q url.Values) (f admin.Filter, err error) {
	f = admin.Filter{
		Topic: q.Get("topic"), Key: q.Get("key"), Consumer: q.Get("consumer"),
		ErrorGroup: q.Get("group"), ErrorContains: q.Get("error"), IDs: q["id"], All: q.Get("all") == "yes",
	}
	if in := q.Get("in"); in != "" {
		if err := f.In.UnmarshalText([]byte(in)); err != nil {
			return f, unclear(err)
		}
	}
	for _, state := range q["state"] {
		if !slices.Contains(f.In.States(), admin.State(state)) {
			return f, unclear(fmt.Errorf("unknown state %q: a message in the %s is one of %v", state, f.In, f.In.States()))
		}
		f.States = append(f.States, admin.State(state))
	}
	if f.After, err = parseTime(q.Get("after")); err == nil {
		f.Before, err = parseTime(q.Get("before"))
	}
	return f, err
}

func parseTime(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	t, err := words_.Time(s, time.Now())
	if err != nil {
		return t, unclear(err)
	}
	return t, nil
}

// values is the inverse of parseFilter.
func values(f admin.Filter) url.Values {
	q := url.Values{}
	set := func(name, value string) {
		if value != "" {
			q.Set(name, value)
		}
	}
	set("topic", f.Topic)
	set("key", f.Key)
	set("consumer", f.Consumer)
	set("group", f.ErrorGroup)
	set("error", f.ErrorContains)
	if f.In != admin.Outbox {
		set("in", f.In.String())
	}
	for _, state := range f.States {
		q.Add("state", string(state))
	}
	for _, id := range f.IDs {
		q.Add("id", id)
	}
	for name, t := range map[string]time.Time{"after": f.After, "before": f.Before} {
		if !t.IsZero() {
			set(name, field(t))
		}
	}
	if f.All {
		q.Set("all", "yes")
	}
	return q
}

// field formats a time for the browser's field.
func field(t time.Time) string {
	switch {
	case t.IsZero():
		return ""
	case t.Second() == 0:
		return t.UTC().Format("2006-01-02T15:04")
	}
	return t.UTC().Format("2006-01-02T15:04:05")
}

// link returns the URL of a page with a filter.
func link(page string, f admin.Filter, more ...string) string {
	q := values(f)
	for i := 0; i+1 < len(more); i += 2 {
		q.Set(more[i], more[i+1])
	}
	if len(q) == 0 {
		return "./" + page
	}
	return page + "?" + q.Encode()
}

// to returns the URL of a page with query parameters.
func to(page string, more ...string) string { return link(page, admin.Filter{}, more...) }

// narrow reports whether a filter excludes some messages of its states.
func narrow(f admin.Filter) bool {
	f.In, f.States, f.All = 0, nil, false
	return len(values(f)) > 0
}

// words describes a filter, line by line.
func words(f admin.Filter) (list []pair) {
	add := func(name, value string) {
		if value != "" {
			list = append(list, pair{name, value})
		}
	}
	add("Table", f.In.String())
	ids := f.IDs
	if f.IDs = nil; len(ids) == 1 {
		f.IDs = ids
	}
	for _, w := range summary.Filter(f) {
		add(sentence(w[0]), w[1])
	}
	if len(ids) > 1 {
		add("Messages", strconv.Itoa(len(ids))+" selected")
	}
	return list
}

// pair is a name and its value.
type pair struct{ Name, Value string }

// ownerOf names the column that messages of a table belong to besides their topic.
func ownerOf(t admin.Table) string {
	if t == admin.Inbox {
		return "Consumer"
	}
	return "Source"
}
