package ui

import (
	"context"
	"slices"

	"github.com/millrace-go/watermill-outbox/admin"
)

// verb is one of the things that can be done.
type verb struct {
	name   string
	label  string // of its button
	past   string // "Requeued"
	does   string // what becomes of the messages
	coming string // what becomes of those in the inbox; "" = the same
	danger bool   // it does not come back by itself
	reason bool   // it needs a reason
	states map[admin.Table][]admin.State
	do     func(*admin.Admin, context.Context, admin.Act) (admin.Result, error)
	topic  func(*admin.Admin, context.Context, admin.TopicAct) error // in the place of do
}

// verbs are all of them, in the order of their buttons.
var verbs = []*verb{
	{
		name: "requeue", label: "Requeue", past: "Requeued", do: (*admin.Admin).Requeue,
		does: "They are retried with all their attempts, under the same UUIDs.",
		coming: "They are handled on their next delivery: the broker redelivers them, " +
			"or Redrive publishes them again.",
		states: map[admin.Table][]admin.State{
			admin.Outbox: {admin.Dead, admin.Failing, admin.Discarded}, admin.Inbox: {admin.Dead, admin.Discarded},
			admin.Queue: {admin.Dead},
		},
	},
	{
		name: "retry_now", label: "Retry now", past: "Retried", do: (*admin.Admin).RetryNow,
		does: "They are retried at once, and do not wait for their time.",
		states: map[admin.Table][]admin.State{
			admin.Outbox: {admin.Failing, admin.Delayed}, admin.Queue: {admin.Failing, admin.Delayed},
		},
	},
	{
		name: "redrive", label: "Redrive", past: "Redriven", do: (*admin.Admin).Redrive,
		does: "They are published again from their dead letters, to the topics that they came from, and handled once. " +
			"Those whose letter is not in the outbox any more stay dead.",
		states: map[admin.Table][]admin.State{admin.Inbox: {admin.Dead}},
	},
	{
		name: "skip_head", label: "Skip", past: "Skipped", do: (*admin.Admin).SkipHead, danger: true, reason: true,
		does:   "The first message of each blocked key is discarded, which unblocks the key.",
		states: map[admin.Table][]admin.State{admin.Outbox: {admin.Failing}}, // Discard is as good for dead ones
	},
	{
		name: "replay", label: "Replay", past: "Replayed", do: (*admin.Admin).Replay, danger: true,
		does:   "They were published, and are published again. Consumers whose inbox has forgotten them handle them twice.",
		states: map[admin.Table][]admin.State{admin.Outbox: {admin.Done}},
	},
	{
		name: "discard", label: "Discard", past: "Discarded", do: (*admin.Admin).Discard, danger: true, reason: true,
		does: "They are never published or handled. They keep your reason, and are deleted when their retention is over.",
		states: map[admin.Table][]admin.State{
			admin.Outbox: {admin.Dead, admin.Failing, admin.Delayed, admin.Ready},
			admin.Inbox:  {admin.Dead, admin.Failing, admin.Ready},
			admin.Queue:  {admin.Dead, admin.Failing, admin.Delayed, admin.Ready},
		},
	},
	{
		name: "pause", label: "Pause", past: "Paused", topic: (*admin.Admin).Pause,
		does: "Forwarders stop publishing this topic until an operator resumes it. Keys whose next message " +
			"is of this topic wait.",
	},
	{
		name: "resume", label: "Resume", past: "Resumed", topic: (*admin.Admin).Resume,
		does: "Forwarders publish this topic again.",
	},
}

// verbOf finds a verb by its name; nil if there is none.
func verbOf(name string) *verb {
	if i := slices.IndexFunc(verbs, func(v *verb) bool { return v.name == name }); i >= 0 {
		return verbs[i]
	}
	return nil
}

// effect is what becomes of messages in a table.
func (v *verb) effect(in admin.Table) string {
	if in == admin.Inbox && v.coming != "" {
		return v.coming
	}
	return v.does
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
	for _, v := range verbs {
		of := f
		of.States = nil
		for _, s := range f.States {
			if slices.Contains(v.states[f.In], s) {
				of.States = append(of.States, s)
			}
		}
		if len(of.States) > 0 {
			of.All = !narrow(of)
			list = append(list, offer{v.name, v.label, v.danger, actLink(v.name, of, "from", from)})
		}
	}
	return list
}

// actLink is where it is asked whether something should be done.
func actLink(name string, f admin.Filter, more ...string) string {
	return link("act", f, append(more, "verb", name)...)
}
