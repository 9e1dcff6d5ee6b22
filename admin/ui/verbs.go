package ui

import (
	"context"
	"slices"
	"strings"

	"github.com/millrace-go/watermill-outbox/admin"
)

// verb is an act: on messages, or on a topic.
type verb struct {
	admin.Verb
	topic func(*admin.Admin, context.Context, string, string) error
}

// verbOf finds a verb by name; nil if it does not exist.
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
		return &verb{admin.Verb{Name: name, Past: "Paused",
			Does: map[admin.Table]string{admin.Outbox: "Forwarders stop publishing " +
				"this topic until an operator resumes it. Keys whose next message is of this topic wait."}}, (*admin.Admin).Pause}
	case "resume":
		return &verb{admin.Verb{Name: name, Past: "Resumed", Does: map[admin.Table]string{
			admin.Outbox: "Forwarders publish this topic again."}}, (*admin.Admin).Resume}
	}
	return nil
}

// label is the text of a button: "Retry now".
func label(name string) string {
	return sentence(strings.ReplaceAll(name, "_", " "))
}

// offer is a verb that applies to some messages.
type offer struct {
	Name   string
	Label  string
	Danger bool
	Link   string // to the question
}

// offers returns the verbs for a filter's table and states. A verb that does not apply to all of the states applies to
// the others.
func offers(f admin.Filter, from string) (list []offer) {
	for _, v := range admin.Verbs(f.In) {
		of := f
		of.States = nil
		for _, s := range f.States {
			if slices.Contains(v.States[f.In], s) && !(v.Heads && s != admin.Failing) { // discard suits dead ones
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

// actLink returns the URL of the question for an act.
func actLink(name string, f admin.Filter, more ...string) string {
	return link("act", f, append(more, "verb", name)...)
}
