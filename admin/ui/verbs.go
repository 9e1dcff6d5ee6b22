package ui

import (
	"context"
	"slices"
	"strings"

	"github.com/millrace-go/watermill-outbox/admin"
)

// verb is one of the things that can be done: to messages, or to a topic.
type verb struct {
	admin.Verb
	topic func(*admin.Admin, context.Context, admin.TopicAct) error
}

// verbOf finds a verb by its name; nil if there is none.
func verbOf(name string) *verb {
	for _, in := range []admin.Table{admin.Outbox, admin.Inbox} {
		for _, v := range admin.Verbs(in) {
			if v.Name == name {
				return &verb{Verb: v}
			}
		}
	}
	switch name {
	case "pause":
		return &verb{admin.Verb{Name: name, Past: "Paused", Does: map[admin.Table]string{admin.Outbox: "Forwarders stop publishing " +
			"this topic until an operator resumes it. Keys whose next message is of this topic wait."}}, (*admin.Admin).Pause}
	case "resume":
		return &verb{admin.Verb{Name: name, Past: "Resumed", Does: map[admin.Table]string{
			admin.Outbox: "Forwarders publish this topic again."}}, (*admin.Admin).Resume}
	}
	return nil
}

// label is that of a button: "Retry now".
func label(name string) string {
	if name == "skip_head" {
		return "Skip"
	}
	return sentence(strings.ReplaceAll(name, "_", " "))
}

// offer is a verb for some messages.
type offer struct {
	Name   string
	Label  string
	Danger bool
	Link   string // to the question
}

// offers are the verbs for messages of a filter's table and states. A verb that is not for all of them is for the
// others.
func offers(f admin.Filter, from string) (list []offer) {
	for _, v := range admin.Verbs(f.In) {
		of := f
		of.States = nil
		for _, s := range f.States {
			if slices.Contains(v.States[f.In], s) && !(v.Heads && s != admin.Failing) { // discard is as good for dead ones
				of.States = append(of.States, s)
			}
		}
		if len(of.States) > 0 {
			of.All = !narrow(of)
			list = append(list, offer{v.Name, label(v.Name), v.Danger, actLink(v.Name, of, "from", from)})
		}
	}
	return list
}

// actLink is where it is asked whether something should be done.
func actLink(name string, f admin.Filter, more ...string) string {
	return link("act", f, append(more, "verb", name)...)
}
