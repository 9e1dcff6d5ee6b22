// Package board tracks the messages in a forwarder's lanes: which were read, which are being published, which wait and
// for what, and which must be settled. It is pure: no clock (now is an argument), no goroutine, no lock, no I/O, and no
// dependency on the database, the broker or Watermill. Its user ensures that events happen one at a time.
//
// # Words
//
//   - A term is one period of owning a lane: its number and epoch. Everything in memory belongs to a term; a term that
//     the board does not have is over.
//   - A key's rows leave one after another, in the order of its chain: its rows in memory. Rows without a key have no
//     order.
//   - An id is known if its row is in memory, or was settled since the last read began, or waits for another attempt: a
//     read that returns it brings nothing new.
//   - A head is a row that waits for another attempt. It blocks its key: no row of the key with a higher id is
//     published. It is overdue if its time has come and it is postponed.
//   - A topic is paused when its broker cannot be reached, or by an operator; slow when slow and hung calls use most of
//     its slots; jammed when all of its slots are used by hung calls. While it is paused, or slow with enough rows in
//     memory, it is closed.
//   - A row that was read and cannot be kept is deferred: it is dropped, and its key, or its topic in this lane,
//     remembers the lowest id from which to read again, its low. A key that waits has a deferred row on a closed topic:
//     its rows on other topics are deferred too.
//   - To catch up is to read deferred rows again that may now continue: see Catch. It is part of an ordinary read.
//   - A fetch is a row to read by id, with the reason: retry, probe, or orphan (pending, and unknown to the board).
//   - A probe is the message that tests whether a paused topic works again; it is fetched when there is a slot for its
//     call. A pass lets a head or a probe go although its key is blocked.
//   - A call is one Publish in flight: young, then slow, expired at its timeout, and hung once that was charged and it
//     still has not returned.
//   - To settle is to write results to the database; the database's answer to a failure is an outcome.
//   - To hand back a lane is to stop work on it; it is free when nothing of it is in flight or unsettled.
//
// # The states of a row
//
//	RowsRead -> in its chain -> queued -> in flight -> published ------------------> settled -> forgotten
//	   |            ^   |                     |
//	   |            |   v                     +-> rejected, permanent: a head, and a failure to settle
//	   +------> deferred, caught up           |     outcome Waiting: asked for when due, goes with a pass
//	                                          |     outcome Dead: forgotten; with BlockKeyOnDead still a head
//	                                          |     outcome Gone: its head goes.  Fenced: the term is over
//	                                          +-> unavailable: deferred, or still a head; its topic is paused
//	                                          +-> unknown: as rejected, or as unavailable: see breaker.go
//	                                          +-> aborted: deferred, and caught up at once
//	                                          +-> timed out: as rejected or unavailable, and the call is hung.
//	                                              A late success is a success; a late error is nothing
//	                                          If an operator had the message sent again, and that was read since, no
//	                                          answer says anything of it: its head stays
//
//	topic: open -> paused -> probe fetched -> probe in flight -> open, or paused for longer
//	       open -> slow -> jammed -> open; other topics go on
//	lane:  LaneTaken -> read -> HandBack -> free -> LanesLost, or LanesLost at any time
//
// # Catching up
//
// A row is deferred with its key if the key is blocked, its chain is full, or the row came without the payload that it
// needs. It is deferred for its topic if that is closed, or is itself being caught up from a lower id. A key with a row
// that is deferred for its topic waits for that topic with all later rows, whatever their topics are: lane.waits.
//
// A read catches up with the keys that may continue and have a low (Catch.Keys), and, in lanes where rows were deferred
// for a topic that is open again, with all rows that are ready there (Catch.All), from the lowest low up to the
// request's cursor. This uses the same snapshot as the rest of the read, which begins at that cursor or below, so no
// committed row lies between the two. When the read is applied, first the lows of those keys and topics move past the
// rows that it saw (all of them, if neither its limit nor its range of ids ended it), then these rows are accepted,
// then the new ones. A row above the low that its key or its topic has by then is deferred again. So the lows are the
// only state; a low that was lowered during the read to below where the read began is left unchanged.
//
// # Order
//
// RowsRead receives rows in an order that is right for each key, and every rule here preserves it: no row of a key is
// in memory above its low, or above the low of the topic that it waits for. A row that was committed late, with a lower
// id than rows in memory, goes before them, unless they are in flight. A due row goes to the end and is not deferred:
// if it is not kept, it returns with the next due rows. A row that is deferred twice, or read twice, is known or above
// a low. A key is blocked when a publish fails, not when the failure is settled. A key has one call at a time, not
// counting hung ones.
//
// The number of keys that wait for topics is bounded (Config.Deferred). For keys beyond the bound, rows of the closed
// topic are still deferred for the topic, and leave in their order; but while the topic is closed, their rows on other
// topics do not wait for them. Within a topic the order of a key's rows is always kept.
//
// # What is bounded, and what happens beyond each bound
//
//	rows in memory, and their bytes      Beyond Config.Rows or Bytes a read returns only the rows asked for by id, and a
//	                                     few others, because all rows in memory may wait behind a few hung calls. At
//	                                     twice as much: probes only. Large rows come without payload; a read keeps those
//	                                     that there is room for, and always one.
//	calls                                Concurrency young calls, and as many of one topic, of any age; 8 times as many
//	                                     in total. A topic whose calls hang stops itself and is reported as jammed; eight
//	                                     such topics stop all others, until one call returns.
//	rows of a slow topic                 A sixteenth of the room, and the chain of one key. The rest is deferred, or its
//	                                     backlog would fill the room.
//	rows of a key in memory              Config.Chain. The rest is deferred.
//	keys that wait for topics            Config.Deferred: see Order. About 100 bytes each. Other deferred rows take no
//	                                     memory at all.
//	catching up                          Half of the room is for keys, and half for topics; 1,024 keys in a read.
//	due rows that are not kept           Return with the next read of due rows, which leaves out delayed rows of up to 64
//	                                     blocked keys that have many, and closed topics, unless a head may have unknown
//	                                     companions of its act: these come first. Before a paused topic is tested, or
//	                                     reopens, a read looks for requeued rows: until it has seen all due rows in a
//	                                     lane, new rows there wait (topic.unseen). While errors are unknown no row waits
//	                                     for that, because messages that always fail open and close the topic again and
//	                                     again; instead each poll leaves out only its delayed rows.
//	heads                                No bound for those with a key: each blocked key must be known. About 300 bytes
//	                                     each. Without a key, Config.Deferred; the others are read when they fall due.
//	orphans that wait for a read         1,000. The next sweep finds the others.
//	idle topics                          1,024; the others are forgotten.
//	unsettled results                    Beyond twice Config.Rows nothing more is read.
//
// Reading past a long deferred backlog costs as much as any reading, once, and once more when it is caught up. It is
// not slowed down, because messages of other topics lie behind it in the same lane. While a topic is caught up, the
// same reads also return other committed rows.
//
// No event visits more than a few hundred keys or rows, except: those that get rows as an argument (RowsRead, Settled);
// the end of a pause, which visits all heads if some are overdue; the end of catching up with a topic, which visits the
// waiting keys of a lane; HeadsSeen and Firsts, which visit the heads and the waiting keys of a lane; and forgetting a
// lane, which visits its rows in memory. The heads of a newly taken lane, which may be very many, are sorted outside
// the board (NewTaken).
//
// # Files
//
// lanes.go terms, handing back, forgetting; reads.go and fetches.go requests and results of reads; large.go rows that
// came without payload; rows.go into memory and out of it; keys.go chains; deferred.go deferred rows, and catching up;
// topics.go queues, slots, slow topics; pauses.go closed topics and their probes; breaker.go unrecognised errors;
// calls.go from Next to Returned; retries.go heads; acts.go rows that an operator requeued in one act; results.go
// results of calls, and their settling; effects.go what others must do about it; ids.go; list.go.
package board
