package admin

import (
	"context"
)

// Verb is what operators do to messages. Commands and pages are made from it.
type Verb struct {
	Name   string            // as in the audit log
	Past   string            // "Requeued"
	Does   map[Table]string  // what becomes of the messages, by the tables that it is for
	States map[Table][]State // that it may change, its default first
	Stored string            // how the error text begins that it leaves, which then needs a reason; "" = it leaves none
	Danger bool              // it does not come back by itself
	Heads  bool              // only the first message of each key
}

// Verbs are those for messages of a table, in the order in which they are offered.
func Verbs(t Table) (list []Verb) {
	for _, v := range []Verb{requeue, retryNow, redrive, skip, replay, discard} {
		if len(v.States[t]) > 0 {
			list = append(list, v)
		}
	}
	return list
}

// Do does what the verb of a name does: Requeue, RetryNow, Redrive, SkipHead, Replay or Discard.
func (a *Admin) Do(ctx context.Context, verb string, act Act) (Result, error) {
	for _, v := range Verbs(act.Filter.In) {
		if v.Name == redrive.Name && verb == v.Name {
			return a.Redrive(ctx, act)
		} else if v.Name == verb {
			return a.run(ctx, v, act)
		}
	}
	return Result{}, invalid("admin: there is no %q for the %s", verb, act.Filter.In)
}

// States are those that a message of a table can have.
func (t Table) States() []State { return stores[t].states }

var (
	waits   = []State{Failing, Delayed}
	pending = []State{Dead, Failing, Delayed, Ready}
	requeue = Verb{
		Name: "requeue", Past: "Requeued", States: map[Table][]State{
			Outbox: {Dead, Failing, Discarded}, Inbox: {Dead, Discarded}, Queue: {Dead},
		}, Does: map[Table]string{
			Outbox: "They are retried with all their attempts, under the same UUIDs. Pending messages of their keys wait behind them.",
			Inbox:  "They are handled on their next delivery: the broker redelivers them, or redrive publishes them again.",
			Queue:  "They are retried with all their attempts.",
		},
	}
	retryNow = Verb{
		Name: "retry_now", Past: "Retried", States: map[Table][]State{Outbox: waits, Queue: waits}, Does: map[Table]string{
			Outbox: "They are retried at once, and do not wait for their time.", Queue: "They are retried at once, and do not wait for their time.",
		},
	}
	skip = Verb{
		Name: "skip_head", Past: "Skipped", Stored: "skipped", Danger: true, Heads: true,
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
			Outbox: "They are never published. They keep payload and reason, and are deleted when their retention is over; requeue restores them until then.",
			Inbox:  "They are marked as handled: their next delivery is acked and does nothing.",
			Queue:  "They are never processed. This cannot be undone.",
		},
	}
)

// Requeue retries messages that are dead, with all their attempts; in the outbox also those of Filter.States Failing,
// and those that were Discarded.
//
// Messages of the outbox are published under the same UUIDs, after what of their key was published already; what is
// behind them waits. Those of one key that one act requeues are published in the order of their ids, whatever their
// states and topics were, unless the topic of some is paused. An inbox knows a copy for as long as its retention;
// JetStream is told another generation, or it would swallow the message as a copy.
//
// A message in the inbox is handled when it is delivered next: the broker must redeliver it. If it will not, Redrive
// sends it.
//
// All acts work in small batches, oldest messages first, each with its count in the audit log in one transaction, and
// skip what another session has locked. They return ErrUnbound, ErrNoActor, errors that name the field at fault, and
// those of the database and of the context, with what was done before.
func (a *Admin) Requeue(ctx context.Context, act Act) (Result, error) {
	return a.run(ctx, requeue, act)
}

// Discard settles messages that are never to be sent, or handled: dead ones, or those of Filter.States. They keep their
// payload and the reason, block no key, and are deleted as what is done is. Requeue brings them back until then, but
// for those of the queue, which are done like any other. One that a forwarder is publishing at that moment still
// leaves.
func (a *Admin) Discard(ctx context.Context, act Act) (Result, error) {
	return a.run(ctx, discard, act)
}

// SkipHead discards the first message of each blocked key, if it fits the filter, so that what is behind it leaves: one
// that failed and waits for another attempt, or with Filter.States Dead one that blocks its key by
// forwarder.Config.BlockKeyOnDead. BlockedKeys lists them.
func (a *Admin) SkipHead(ctx context.Context, act Act) (Result, error) { return a.run(ctx, skip, act) }

// Replay sends published messages of the outbox again that are still kept, as Requeue does. Try it with Act.DryRun
// first.
func (a *Admin) Replay(ctx context.Context, act Act) (Result, error) { return a.run(ctx, replay, act) }

// RetryNow makes messages due now that failed and wait for another attempt; with Filter.States Delayed those that wait
// for the time that their sender chose.
func (a *Admin) RetryNow(ctx context.Context, act Act) (Result, error) {
	return a.run(ctx, retryNow, act)
}
