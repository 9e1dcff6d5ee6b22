// Package board knows the messages in a forwarder's lanes: which were read, which are being published, which wait and
// for what, and what is to be settled. It is pure: no clock (now is an argument), no goroutine, no lock, no I/O, and
// nothing of the database, the broker or Watermill. Its user takes care that one event happens at a time.
//
// # Words
//
//   - A term is one time of owning a lane: its number and epoch. All in memory belongs to a term; one that the board
//     does not have is over.
//   - A key's rows leave one after another, in the order of its chain: its rows in memory. Rows without a key follow
//     nobody.
//   - An id is known if its row is in memory, or was settled since the last read began, or waits for another attempt: a
//     read that returns it brings nothing new.
//   - A head is a row that waits for another attempt. It blocks its key: nothing of the key with a higher id is
//     published. It is late if its time has come, and it is put off.
//   - A topic is paused when its broker cannot be reached, or by an operator; slow when slow and hung calls take most
//     of its places; jammed when as many calls of it hang as may be under way. While it is paused, or slow with enough
//     in memory, it is closed.
//   - A row that was read and cannot be kept is deferred: it is dropped, and its key or its topic in this lane remembers
//     the lowest id from which on it is to be read again, its low. A key that waits is one with a deferred row on a closed
//     topic: what it has on other topics is deferred with it.
//   - To catch up is to read again what was deferred and may go on: see Catch. It is part of an ordinary read.
//   - An ask is a row to read by id, and why: retry, trial, or stray (pending, and unknown to the board).
//   - A trial is the message that tries whether a paused topic works again; it is asked for when there is a place for
//     its call. A pass lets a head or a trial go although its key is blocked.
//   - A call is one Publish under way: young, slow after a while, expired at its time-out, hung once that was charged
//     and it has not returned.
//   - To settle is to write results to the database; its answer to a failure is an outcome.
//   - To hand back is to stop work on a lane; it is free when nothing of it is under way or unsettled.
//
// # What becomes of a row
//
//	RowsRead -> in its chain -> queued -> under way -> published ------------------> settled -> forgotten
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
//	topic: open -> paused -> trial asked for -> trial under way -> open, or paused for longer
//	       open -> slow -> jammed -> open; other topics go on
//	lane:  LaneTaken -> read -> HandBack -> free -> LanesLost, or LanesLost at any time
//
// # Catching up
//
// A row is deferred with its key if the key is blocked, its chain full, or the row came without the payload that it was
// to bring; and for the sake of its topic if that is closed, or is itself being caught up at a lower id. A key that has a
// row deferred for its topic's sake waits for that topic with all later rows, whatever their topics are: lane.waits.
//
// A read catches up with the keys that may go on and have a low (Catch.Keys), and in lanes where something was deferred
// for a topic that is open again, with all that is ready there (Catch.All), from the lowest low on up to the mark that
// the request has. As it is the same snapshot as the rest of the read, which begins at that mark or below: of what has
// been committed nothing is between the two. When the read is taken over, first the lows of those keys and topics move
// behind what it saw (all of it, if neither its limit nor its stretch ended it), then its rows are accepted, then what is
// new. A row above the low that its key or its topic has by then is deferred again. So there is no other state than the
// lows; one that was lowered during the read, below where that began, is left alone.
//
// # Order
//
// RowsRead gets rows in an order that is right for each key, and every rule here keeps it: no row of a key is in memory
// above its low, or above that of the topic that it waits for. What was committed late, and has a lower id than what is
// in memory, goes before that, unless that is under way. What fell due goes to the end, and is not deferred: if it is not
// kept, it comes again with what falls due. A row that is deferred twice, or read twice, is known or above a low. Holding
// starts when a publish fails and not when that is settled. A key has one call at a time, but for hung ones.
//
// Which keys wait for topics is bounded (Config.Deferred). Of a key beyond that, rows of the closed topic are deferred
// for the topic's sake all the same, and leave in their order; but those that it has on other topics do not wait for
// them, as long as the topic is closed. In a topic the order of a key's rows is never given up.
//
// # What is bounded, and what happens beyond each bound
//
//	rows in memory, and their bytes      Beyond Config.Rows or Bytes a read brings what is asked for by id, and of the
//	                                     rest a little, as all in memory may wait behind a few that hang. At twice as
//	                                     much: trials only. Large rows come without payload; of these a read takes what
//	                                     there is room for, and one in any case.
//	calls                                Concurrency that are young, and as many of one topic, of any age; 8 times as
//	                                     many in all. A topic whose calls hang stops itself and is reported as jammed;
//	                                     eight such topics stop all others, until one call returns.
//	rows of a slow topic                 A sixteenth of the room, and the chain of one key. The rest is deferred, or its
//	                                     backlog would fill the room.
//	rows of a key in memory              Config.Chain. The rest is deferred.
//	keys that wait for topics            Config.Deferred: see Order. About 100 bytes each. Other deferred rows take no
//	                                     memory at all.
//	catching up                          Half of the room is for keys, and half for topics; 1,024 keys in a read.
//	what fell due and is not kept        Comes again with the next read of what fell due, which leaves out closed topics,
//	                                     unless a head may have unknown companions of its act: these come first. Before
//	                                     a paused topic is tried, or goes on, a read looks what was sent again: until it
//	                                     has seen all that fell due in a lane, what is new there waits (topic.unseen).
//	                                     Not so while errors are unknown: messages that always fail open and close the
//	                                     topic again and again, and what works must pass between them.
//	heads                                None for those with a key: each blocked key must be known. Some 300 bytes each.
//	                                     Without a key as many as Config.Deferred; the others are read when they fall due.
//	strays that wait for a read          1,000. The next sweep finds the others.
//	topics                               1,024 that are idle; the others are forgotten.
//	results that are not settled         Beyond twice Config.Rows nothing more is read.
//
// Reading past a long backlog that is deferred costs as much as any reading, once, and once more when it is caught up. It
// is not slowed down, because messages of other topics lie behind it in the same lane. While a topic is caught up, what
// else was committed is read in the same reads.
//
// No event walks more than a few hundred keys or rows, but for those that get rows as an argument (RowsRead, Settled),
// the end of a pause, which walks all heads if some are late, the end of catching up with a
// topic, which walks the keys of a lane that wait, HeadsSeen and Firsts, which walk the heads and the
// waiting keys of a lane, and what forgets a lane, which walks its rows in memory. The heads of a lane that was taken,
// which may be a great many, are sorted out without the board (NewTaken).
//
// # Files
//
// lanes.go terms, handing back, forgetting; reads.go and asks.go what a read is asked for and what it brings; large.go
// those that came without payload; rows.go into memory and out of it; keys.go chains; deferred.go what was deferred, and
// catching up; topics.go queues, places, slow topics; pauses.go closed topics and their trials; breaker.go errors that
// are not recognised; calls.go from Next to Returned; retries.go heads; acts.go what an operator had sent again in one
// act; results.go what became of calls, and of their settling; effects.go what others must do about it; ids.go; list.go.
package board
