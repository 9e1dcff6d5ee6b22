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
//   - An id is known if a read may return it and it needs no second look: its row is in memory, or was settled since
//     the last read began. To forget is to drop what is settled from what is known, and happens only when a read
//     begins.
//   - A head is a row that waits for another attempt. It blocks its key: nothing else of the key is published. It is
//     late if its time has come, and it is put off.
//   - A topic is paused when its broker cannot be reached, or by an operator; slow when slow and hung calls take most
//     of its places; jammed when as many calls of it hang as may be under way. While it is paused, or slow with enough
//     in memory, it is closed.
//   - A key is blocked if it is held or waits for a closed topic.
//   - A parked row is known by its id only, as its turn has not come. To unpark it is to ask for it by id. A pen is a
//     key for the parked rows without a key of one topic.
//   - The shadow is what of a lane there was no room to park: a few bits per hash of key, and the lowest id. Nothing
//     new of a key is kept whose bits are set. A rewind, a mark of the lane set back to below that id, clears it.
//   - An ask is a row to read by id, and why: unpark, retry, trial, or stray (pending, and unknown to the board).
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
//	   +-------> parked                       |     outcome Waiting: asked for when due, goes with a pass
//	   |            ^   |                     |     outcome Dead: forgotten; with BlockKeyOnDead still a head
//	   |            |   v                     |     outcome Gone: its head goes.  Fenced: the term is over
//	   +-------> shadow -> rewind, read again +-> unavailable: parked, or still a head; its topic is paused
//	                                          +-> unknown: as rejected, or as unavailable: see breaker.go
//	                                          +-> aborted: parked, and asked for again
//	                                          +-> timed out: as rejected or unavailable, and the call is hung.
//	                                              A late success is a success; a late error is nothing
//	                                          If an operator had the message sent again, and that was read since, no
//	                                          answer says anything of it: its head stays
//
//	key:   (none) -> running -> blocked -> unparking, lowest ids first -> running -> (none)
//	topic: open -> paused -> trial asked for -> trial under way -> open, or paused for longer
//	       open -> slow -> jammed -> open; other topics go on
//	lane:  LaneTaken -> read -> HandBack -> free -> LanesLost, or LanesLost at any time
//
// # Order
//
// RowsRead gets rows in an order that is right for each key, and every rule here keeps it. What is put out of the way
// is put out of the way with all that follows it: a key with anything parked has everything parked that is read of it,
// and parked ids go on in their order. So does a chain: what was committed late goes before what is there with higher
// ids, which may be of a topic that hangs; if its own topic is closed, they wait behind it. What fell due goes to the
// end. Ids are an order that is right for each key: what has committed before another row is inserted has the lower
// one. A row that is read again is known, or parked, or a head. Holding starts when a publish fails and not when that
// is settled; asks and rewinds take effect in ReadBegins only, as a read under way may return rows that must come
// later. A key has one call at a time, but for hung ones.
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
//	rows of a slow topic                 A sixteenth of the room, and the chain of one key. The rest is parked, or its
//	                                     backlog would fill the room.
//	rows of a key in memory              Config.Chain. The rest is parked.
//	ids parked of a key, and in all      Config.KeyParked and Config.Parked. Closed topics have half of all, and each at
//	                                     most as many as are left of that half, as a topic may be closed for days. The
//	                                     rest goes to the shadow of its lane, of each key what comes last.
//	shadow                               128 KiB a lane, whatever it holds. The more keys, the more others seem to be in
//	                                     it: of 16,000 keys in a lane's shadow hardly any, of 160,000 one in 25. These
//	                                     wait until the lane is read again, five minutes at most, and so do rows on open
//	                                     topics of keys that have something in it.
//	what fell due and is not kept        Comes again with the next read of what fell due, which leaves out closed topics,
//	                                     unless a head may have unknown companions of its act: these come first.
//	heads                                None for those with a key: each blocked key must be known. Some 300 bytes each.
//	                                     Without a key as many as Config.Parked; the others are read when they fall due.
//	strays that wait for a read          1,000. The next sweep finds the others.
//	topics                               1,024 that are idle; the others are forgotten.
//	results that are not settled         Beyond twice Config.Rows nothing more is read.
//
// What was refused for a topic is read again when the topic is open and has used up most of its parked ids; what was
// refused for a key, when that is free and has used up its own. Reading past a long backlog that goes to the shadow
// costs as much as any reading, once. It is not slowed down, because messages of other topics lie behind it in the same
// lane.
//
// No event walks more than a few hundred keys or rows, but for those that get rows as an argument (RowsRead, Settled),
// the end of a pause, which walks all heads if some are late, HeadsSeen and Firsts, which walk the heads and the
// waiting keys of a lane, and what forgets a lane, which walks its rows in memory. The heads of a lane that was taken,
// which may be a great many, are sorted out without the board (NewTaken).
//
// # Files
//
// lanes.go terms, handing back, forgetting; reads.go and asks.go what a read is asked for and what it brings; large.go
// those that came without payload; rows.go into memory and out of it; keys.go chains; topics.go queues, places, slow
// topics; pauses.go closed topics and the keys that wait for them; breaker.go errors that are not
// recognised; calls.go from Next to Returned; retries.go heads; acts.go what an operator
// had sent again in one act; parked.go ids; shadow.go; results.go what became of calls, and of their settling;
// effects.go what others must do about it; list.go.
package board
