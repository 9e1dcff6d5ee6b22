package admin

import (
	"context"
)

var (
	requeue = verb{
		name: "requeue", states: map[Table][]State{
			Outbox: {Dead, Failing, Discarded}, Inbox: {Dead, Discarded}, Queue: {Dead},
		},
	}
	discard = verb{
		name: "discard", reason: "discarded", states: map[Table][]State{
			Outbox: {Dead, Failing, Delayed, Ready}, Inbox: {Dead, Failing, Ready}, Queue: {Dead, Failing, Delayed, Ready},
		},
	}
	skip = verb{
		name: "skip_head", reason: "skipped", oneEach: true, states: map[Table][]State{Outbox: {Failing, Dead}},
	}
	replay   = verb{name: "replay", states: map[Table][]State{Outbox: {Done}}}
	retryNow = verb{name: "retry_now", states: map[Table][]State{Outbox: {Failing, Delayed}, Queue: {Failing, Delayed}}}
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
