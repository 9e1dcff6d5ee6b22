// Package queue stores messages first and has them processed later, once each: a durable queue in Postgres.
//
//	Ingest, NewWebhook, Store.Enqueue        store a message under the ID that its sender gave it; copies are known
//	Dispatcher, Subscriber, Store.Claim      take it, handle it, and mark it done or dead
//
// # The words
//
//   - message: a row. Its ID is its sender, and the sender's name for it.
//   - claim: to take messages for an owner, which has them alone until the lease is over. Owner and lease stand in the
//     row.
//   - settle: to ack (it is done), abandon (a failed attempt, it is retried), fail (it is dead) or release (it is
//     retried, without a charge) what one has claimed. It changes only rows of the caller's: after a lost lease it
//     changes nothing, and says so.
//   - reap: to release messages whose lease expired, and charge each one attempt. No claim takes a row that has an
//     owner.
//   - stray: a message claimed by a statement whose reply was lost. It is given back without a
//     charge before the next claim, as far as it is found among the first 100,000 of an index.
//   - suspect: a message whose owner died, or let the lease run out, while it had it.
//   - place: room for one message in a process. No more messages are claimed than there are places.
//
// # The states of a row
//
//	         Enqueue                claim              ack
//	(none) -----------> processing --------> (owned) --------> done ----> deleted after Retention
//	   |                  ^    ^                |
//	   | AlreadyProcessed |    |  abandon, reap, release
//	   +------> seen -----+    +----------------+
//	                                            |  fail, or the last attempt
//	                                            +--------------> dead, until it is requeued
//
// A row without a due time was never given back: it was not claimed yet, or its first owner still has it. Whatever goes
// back has one, so claims pass the rows that are ready once, upwards, and keep a mark in memory.
//
// # A handler in a transaction
//
// The ack is the first statement of the handler's transaction: BEGIN and the ack, the handler, COMMIT. It makes sure
// that the message is still ours, and its row lock keeps it so for as long as the handler runs, whatever the clocks
// say: neither renewals nor reaping wait for such a row. What the handler writes and that the message is done are one
// commit. An error rolls both back, and then the attempt is charged, or the message buried, in a statement of its own.
// If there is no connection for the transaction, the handler is not called, and nothing is charged. If it is unknown
// whether COMMIT succeeded, the charge settles it: it changes nothing if the message is done.
//
// A Detached handler runs outside of a transaction. Its lease is renewed each third of it; the process trusts it only
// up to its end on the monotonic clock, counted from before the claim or the renewal was sent, and then the handler's
// context ends. Acks are written in batches.
//
// # A Dispatcher at work
//
// One goroutine claims. A schedule, which is a plain value without clock and SQL, tells it when and how many: as many
// as places are free, again at once while there is more, else at the next poll, later and later while there is nothing,
// or when a commit wakes it, here through memory and elsewhere by NOTIFY. One statement claims for all topics, and of
// each whose handler has a limit of its own no more than it has room for. Such topics do not wait behind a backlog of
// others: they are found by marks of their own. One that has no room is behind, and is claimed from where it was left,
// in the same statement, until it has caught up. One without a handler counts as one that has no room for some seconds,
// since others may handle it; what is still there afterwards is put off.
//
// Each message gets a goroutine. One goroutine acks, one renews, one reaps and cleans. Locks are taken in this order:
// claiming, Group.mu, loop.mu, claimer.mu.
//
// A message that kills its process is charged with the others that were beside it, since it is unknown which of them it
// was. So all of them are suspects, and a process takes one suspect at a time: the next end is charged to the right
// one.
//
// Each message that dies is an error line, and observers are told of it, also if it expired, or died with its process.
// With a Dispatcher it dies in the transaction of DispatcherConfig.OnDead. With OnDead reaping leaves messages alive
// that have no attempt left, and expired ones, until a Dispatcher claims them for their burial, and not before they are
// due.
//
// At the end nothing more is claimed; what a claim under way brings is released; handlers have CloseTimeout, then their
// contexts end and what they have is released; and what was done is acked.
//
// # From other languages
//
// Plain SQL stores a message as well:
//
//	INSERT INTO inbox_queue (source, message_id, topic, state, payload)
//	VALUES ('billing', '4711', 'invoice.paid', 'processing', '{"amount": 5}')
//	ON CONFLICT (source, message_id) DO UPDATE
//	SET topic = excluded.topic, state = 'processing', payload = excluded.payload,
//	    due_at = clock_timestamp(), last_seen_at = clock_timestamp()
//	WHERE inbox_queue.state = 'seen';
//
// A message that was only looked up, by AlreadyProcessed, is seen and has no content yet, so it gets it; a copy of any
// other changes nothing. Set in both places what else the message has. Leave id to its default. due_at of a new row is
// NULL, or in the future by the clock of the database. A text with a backslash is no payload: give bytes, or
// convert_to(the_text, 'UTF8'). metadata is an object of texts; of what else it holds the
// handler gets the JSON. Dispatchers find the message at their next poll.
//
// # Order
//
// There is none. Claims by several owners cannot keep one without starving keys. What needs its order per key goes
// through a second set of outbox tables and forwarder.Subscriber; docs/guides/queue.md has the recipe.
package queue
