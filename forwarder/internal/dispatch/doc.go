// Package dispatch decides which messages of a forwarder's lanes may be published, when a failed one is tried again,
// and which results must be settled. It is pure: it has no clock (now is an argument), goroutine, lock or I/O, and does
// not know the database, the broker or Watermill. Its caller passes it one event at a time.
//
// # Words
//
//   - Lane: one of 64 partitions of the messages, by ordering key. One forwarder owns it at a time.
//   - Assignment: one period of owning a lane, identified by its epoch. Everything in memory belongs to an assignment.
//   - Key: its rows leave one after another, in the order of the key's queue. Rows without a key have no order.
//   - Blocked row: a row that waits for another attempt. If it has a key it blocks it: no row of the key with a higher
//     id is published. Its retry is overdue if its time has come and something else is in its way.
//   - Due row: a row that was delayed, failed or requeued, and whose time has come.
//   - Requeue: an operator makes a message due again, with a new generation.
//   - Slot: permission for one call. There are Concurrency of them for young calls, and as many for each topic.
//   - Room: how many more rows, and bytes, may be brought into memory.
//   - Closed topic: paused, because its broker fails or an operator paused it, or slow with enough rows in memory. It
//     is slow when slow and hung calls use most of its slots, and exhausted when hung calls use all of them.
//   - Deferred row: it was read and cannot be kept, so it is dropped, and its key, or its topic in this lane, remembers
//     the lowest id from which to read again. A key with a row deferred for a topic waits for that topic.
//   - Catch up: an ordinary read also returns deferred rows that may now continue.
//   - Fetch: read a row by id, for a retry, as a probe, or as an orphan (it is pending, and unknown here).
//   - Probe: the message that tests whether a paused topic works again.
//   - Call: one Publish in flight. It is young, then slow, expired at its timeout, and hung if it has still not
//     returned when its failure is recorded.
//   - Settle: write results to the database, which answers each failure with an outcome.
//   - Release a lane: stop work on it. It is free when nothing of it is in flight or unsettled.
//
// # The way of a row
//
//	RowsRead -> key's queue -> topic's queue -> in flight -> published ------------> settled -> forgotten
//	   |            ^   |                          |
//	   |            |   v                          +-> rejected, permanent: blocked, and a failure to settle
//	   +------> deferred, caught up                |     outcome Waiting: fetched when due, and goes alone
//	                                               |     outcome Dead: forgotten; with BlockKeyOnDead still blocked
//	                                               |     outcome Gone: no longer blocked
//	                                               |     outcome Fenced: the assignment is over
//	                                               +-> unavailable: deferred or still blocked; its topic is paused
//	                                               +-> unknown: as rejected, or as unavailable: see breaker.go
//	                                               +-> aborted: deferred, and caught up immediately
//	                                               +-> timed out: as rejected or unavailable, and the call is hung:
//	                                                     a late success is a success, a late error is ignored
//
//	topic: open -> paused -> probe fetched -> probe in flight -> open, or paused for longer
//	       open -> slow -> exhausted -> open; other topics go on
//	lane:  LaneTaken -> read -> Release -> free -> LanesLost, or LanesLost at any time
//
// When its lane is lost, a row in memory or deferred is forgotten: the lane's next owner reads it again. A call in
// flight then counts only if it succeeds.
//
// If an operator requeued a message during its call, or before its failure was settled, and a read has seen that, the
// result is ignored: it is tried again.
//
// # Order
//
// RowsRead gets the rows of each key in order, and every rule preserves it: no row of a key is in memory above the id
// from which its key, or the topic that it waits for, is deferred. A row that was committed late goes before rows in
// memory with higher ids, unless they are in flight. A due row goes to the end of its key's queue, once its lane's
// cursor has reached it: until then lower rows of its key may be unread. If it is not kept it returns with the next due
// rows. A requeued row blocks its key from the first read of due rows that sees it, even if its topic is closed. A key
// is blocked when a publish fails, not when the failure is settled. A key has one call at a time, not counting hung
// ones.
//
// # Catching up
//
// A row is deferred with its key if the key is blocked, its queue is full, the row came without the payload that it
// needs, or twice as much as the room is in memory. It is deferred for its topic if that is closed, or still has lower
// rows to catch up. A key with a row that is deferred for its topic waits for it with all later rows, whatever their
// topics are (lane.waits). Rows without a key are always deferred for their topic.
//
// A read catches up with keys that may continue (CatchUp.Keys), and with all rows of the lanes where a topic has opened
// again (CatchUp.All), from the lowest remembered id up to the cursor, in the snapshot of its other rows, which begin
// there. Once it is applied, the remembered ids move past the rows that it saw. Then these rows are accepted, then the
// new ones; a row above the id that its key or its topic still remembers is deferred again. So these ids are the only
// state. One that was lowered during the read to below where the read began is left unchanged.
//
// At most Config.Deferred keys wait for topics. For keys beyond that, rows of a closed topic are still deferred in
// order, but their rows on other topics, and due rows, do not wait for them.
//
// # What is bounded
//
//	rows in memory, and bytes   Config.Rows and Bytes. Beyond them a read returns a few rows of each kind, since all
//	                            rows in memory may wait behind a few hung calls. At twice as much: probes only,
//	                            and a read that returns more than it may defers the rest.
//	retries                     half of the room; beyond it a read returns as many retries as new rows, one for each
//	                            lane, since they may come faster than they are published
//	calls                       Concurrency young ones, as many of any age for a topic, 8 times as many in total
//	rows of a slow topic        a sixteenth of the room; the rest is deferred
//	rows of a key               Config.KeyRows; the rest is deferred
//	keys that wait for topics   Config.Deferred, about 100 bytes each. Other deferred rows take no memory.
//	catching up                 half of the room for keys, half for topics; 1,024 keys in a read
//	due rows that are not kept  return with the next read of due rows. Unless they block their keys, it leaves out those
//	                            of closed topics (except the first for a drain or a new lane), and of up to 64 blocked
//	                            keys that have many
//	blocked rows                no bound with a key, about 300 bytes each: each blocked key must be known. Without a
//	                            key Config.Deferred; beyond that they are only read with other due rows
//	unsettled results           beyond twice Config.Rows nothing more is read
//
// Requeued rows must not be overtaken. So before a paused topic is probed or opens, a read looks for due rows, and
// until it has seen all due rows of a lane, new rows of the topic wait there (topic.dueUnseen), and leave the room for
// payloads to due rows. A topic that was paused for unknown errors does not wait for that: messages that always fail
// would close it again and again.
//
// No event visits more than a few hundred keys or rows, except those that get rows as an argument, the end of a pause
// with overdue retries, the end of catching up with a topic, BlockedSeen, WaitingIDs, and forgetting a lane. The
// blocked rows of a newly taken lane, which may be very many, are sorted before the lane is added (NewTakenLane).
//
// # Files
//
// Where a row waits: rows.go (into memory and out of it), keys.go, deferred.go, topics.go. What fails: retries.go,
// requeues.go, pauses.go, breaker.go. What is read: reads.go, fetches.go, large.go. What is published: calls.go,
// results.go. Besides: lanes.go, effects.go, dispatcher.go (state and counts), list.go.
package dispatch
