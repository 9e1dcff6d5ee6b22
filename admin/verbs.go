package admin

import (
	"context"
)

// Verb describes an act on messages. Commands and pages are built from it.
type Verb struct {
	Name   string            // as in the audit log
	Past   string            // "Requeued"
	Does   map[Table]string  // effect on the messages, by table; other tables do not have the verb
	States map[Table][]State // that it may change, defaults first
	Stored string            // prefix of the error text that it stores, for which it needs a reason; "" = stores none
	Danger bool              // cannot be undone
	Heads  bool              // only the first message of each key
}

// Verbs returns the acts for messages of a table, in the order in which they are offered.
func Verbs(t Table) (list []Verb) {
	for _, v := range []Verb{requeue, retryNow, redrive, skip, replay, discard} {
		if len(v.States[t]) > 0 {
			list = append(list, v)
		}
	}
	return list
}

// Do runs the act with the name of a verb: Requeue, RetryNow, Redrive, Skip, Replay or Discard.
func (a *Admin) Do(ctx context.Context, verb string, act Action) (Result, error) {
	for _, v := range Verbs(act.Filter.In) {
		if v.Name == redrive.Name && verb == v.Name {
			return a.Redrive(ctx, act)
		} else if v.Name == verb {
			return a.run(ctx, v, act)
		}
	}
	return Result{}, invalid("admin: act %q does not exist for the %s", verb, act.Filter.In)
}

// States returns the states that a message of the table can have.
func (t Table) States() []State { return stores[t].states }

var (
	waits   = []State{Failing, Delayed}
	pending = []State{Dead, Failing, Delayed, Ready}
	requeue = Verb{
		Name: "requeue", Past: "Requeued", States: map[Table][]State{
			Outbox: {Dead, Failing, Discarded}, Inbox: {Dead, Discarded}, Queue: {Dead},
		}, Does: map[Table]string{
			Outbox: "They are retried, with their attempts counted from zero, under the same UUIDs. Later pending messages " +
				"of their keys wait for them; earlier ones go first.",
			Inbox: "They are handled on their next delivery: the broker redelivers them, or redrive publishes them again.",
			Queue: "They are retried, with their attempts counted from zero.",
		},
	}
	retryNow = Verb{
		Name: "retry_now", Past: "Retried", States: map[Table][]State{Outbox: waits, Queue: waits}, Does: map[Table]string{
			Outbox: "They are retried immediately.", Queue: "They are retried immediately.",
		},
	}
	skip = Verb{
		Name: "skip", Past: "Skipped", Stored: "skipped", Danger: true, Heads: true,
		States: map[Table][]State{Outbox: {Failing, Dead}},
		Does:   map[Table]string{Outbox: "The first message of each blocked key is discarded, which unblocks the key."},
	}
	replay = Verb{
		Name: "replay", Past: "Replayed", Danger: true, States: map[Table][]State{Outbox: {Done}}, Does: map[Table]string{
			Outbox: "They were published, and are published again. Consumers whose inbox has forgotten them handle them twice.",
		},
	}
	discard = Verb{
		Name: "discard", Past: "Discarded", Stored: "discarded", Danger: true,
		States: map[Table][]State{Outbox: pending, Inbox: {Dead, Failing, Ready}, Queue: pending}, Does: map[Table]string{
			Outbox: "They are never published, except those that a forwarder has already read: pause the topic first. " +
				"Until their retention ends, requeue restores them.",
			Inbox: "They are marked as handled: their next delivery is acked and does nothing.",
			Queue: "They are never processed. This cannot be undone.",
		},
	}
)

// Requeue retries dead messages and counts their attempts from zero. In the outbox, Filter.States may also select
// failing and discarded messages.
//
// Messages of the outbox are published under the same UUIDs, after pending messages of their keys with lower ids.
// Messages with higher ids wait once a forwarder has found the requeued ones: within a poll interval, and before
// anything else of a topic that was paused or unavailable. Messages of one key that one act requeues are published in
// the order of their ids. An inbox recognises a second copy within its retention.
// JetStream accepts a copy because each requeue starts a new generation. A message of the inbox is handled at its next
// delivery: the broker must redeliver it, or use Redrive.
//
// All acts work in small batches, oldest messages first, record each batch in the audit log in its transaction, and
// skip locked messages. They return ErrEmptyFilter, ErrNoActor, errors that name an invalid field, and errors of the
// database and the context, with the result so far.
func (a *Admin) Requeue(ctx context.Context, act Action) (Result, error) {
	return a.run(ctx, requeue, act)
}

// Discard settles messages that must not be sent or handled: dead messages, or the messages of Filter.States. They keep
// their payload and the reason, block no key, and are deleted after the retention. Until then Requeue restores them,
// except in the queue. A message that a forwarder has already read, up to some hundred ahead, is still sent: pause its
// topic first.
func (a *Admin) Discard(ctx context.Context, act Action) (Result, error) {
	return a.run(ctx, discard, act)
}

// Skip discards the first message of each blocked key that fits the filter, so that the messages behind it are
// published: a failing message, or with Filter.States Dead a message that blocks its key by
// forwarder.Config.BlockKeyOnDead. BlockedKeys lists them.
func (a *Admin) Skip(ctx context.Context, act Action) (Result, error) { return a.run(ctx, skip, act) }

// Replay publishes messages again that were published and are still kept, as Requeue does. Try it with Action.DryRun
// first.
func (a *Admin) Replay(ctx context.Context, act Action) (Result, error) {
	return a.run(ctx, replay, act)
}

// RetryNow makes failing messages due now; with Filter.States Delayed, messages that wait for the time set by their
// sender.
func (a *Admin) RetryNow(ctx context.Context, act Action) (Result, error) {
	return a.run(ctx, retryNow, act)
}
