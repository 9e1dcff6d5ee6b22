// Package forwarder is the read side of the outbox: it drains the table into any Watermill publisher
// (Forwarder) or delivers it as a subscriber (Subscriber). Both are faces of one engine, which reads
// rows, hands each to somebody, and settles what became of it. This page explains its protocol; the names in
// parentheses are the files that hold each part.
//
// # What is promised
//
//   - A committed message is published, or is visible as dead with its error. No crash, restart, slow
//     transaction or bad message makes one disappear; one of a rolled-back transaction is never sent.
//   - It may be sent twice after a crash or a time-out, always under the same UUID.
//   - If one transaction committed before another inserted a message with the same key, its message
//     leaves first: across retries, several forwarders and the hand-over of lanes. A repetition may come
//     after later messages. A delayed message takes its place when it falls due and holds nobody.
//   - A message that fails holds its own key and nothing else. A broker that cannot be reached costs no
//     message an attempt.
//   - No transaction is open while a broker is talked to.
//
// # Lanes (lease.go, lanes.go)
//
// Keys are hashed to 64 lanes, each owned by at most one forwarder of a scope. A forwarder has one heartbeat
// row, renewed at a third of its lease time on a connection of its own. A lane changes hands by an update
// that compares and raises its epoch: when its owner gave it back, or when the owner's lease ran out on the
// database's clock. Surplus lanes are given back only when nothing of them is under way. A forwarder that shuts
// down has no share any more and gives back each lane as soon as nothing of it is under way. The order of
// messages rests on epochs alone; clocks only limit duplicates: no publish starts after the lease could
// have run out on this process's monotonic clock.
//
// Forwarders whose topics overlap in part do not work at the same time: the later set waits, with its row in the
// table, until the other has left. Who starts meanwhile waits behind it.
//
// # Reading in order (read.go, request.go, fetch.go, integrate.go, tracker.go)
//
// Row ids are handed out in one order and transactions commit in another, so a row can appear below
// ids that were read long ago. Waiting until no older transaction is open would stall behind every long one.
// Instead each read, one statement for all lanes, also returns its snapshot: which transactions were in
// progress, and which id the next one will get. Each such transaction has a bound that all its rows are
// above, because the transaction id is assigned before the row ids. The next read starts each lane at the
// lowest bound of those transactions that its own snapshot no longer shows in progress, or at the lane's mark
// if that is lower. One snapshot decides both, so a read that returns the later message of a key has returned
// the earlier one too. Rows that come again while they are in memory are dropped by their ids, which
// leave memory only before a read that starts after their settling committed. One goroutine does all reads.
//
// A read covers a stretch of ids past the mark, which adapts to the time that it takes. It is taken over as a
// whole or not at all. After one that timed out, fewer lanes are read.
//
// Each read also names the life of the server: when it was started, a token that a crash or a promotion
// empties, and the file of the sequence of ids, which TRUNCATE ... RESTART IDENTITY replaces. In another life, ids may mean
// other messages and what is known of transactions means nothing, so all that was read is forgotten and read anew. The
// lanes are retaken under higher epochs, so that no failure of before counts. What was published in another life is
// settled only for rows that have the message's uuid.
//
// # Publishing (publish.go, board.go, key.go, queue.go)
//
// Up to Concurrency Publish calls are under way, one message each, because a Watermill publisher does not say
// which of several failed. Messages of one key follow one another; those without a key follow nobody. What
// cannot be sent yet is not kept in memory: rows of a held key, of a paused topic, or behind a long queue of
// their own key are skipped, their ids are noted in order, and they are read again by id when their turn
// comes. If too many are noted, the lane is read again from the first that is not.
//
// # Settling (settle.go, result.go)
//
// Results are written back in batches, off the publishing path. After a time-out the batches are smaller and pass
// by the rows that somebody else keeps locked. That a message was published is final, whoever says it. That it failed counts only under the lane's current owner and epoch, which the
// statement locks: otherwise the failure of a forwarder that lost its lane would let the next owner's later
// messages pass, or hold a key for ever.
//
// # Failures (verdict.go, topic.go, retry.go)
//
// Config.Classify, or else the publisher itself (Classifier), gives a verdict on each error. Unavailable pauses the topic, charges nothing, and sends one
// trial message after a while. Rejected charges an attempt and holds the key until the next one. Permanent
// makes the message dead at once. A key is held by the rows that wait for another attempt: that is derived
// from attempts > 0, not stored, and whoever takes a lane reads it from there before the first read. After
// MaxAttempts, and at least MinDeadAge old, a message is dead.
//
// # Maintenance (maintain.go)
//
// A sweep looks for rows that somebody made pending behind our back, and held keys are compared with the
// table, at most a twentieth of the time. One forwarder of the scope deletes what was published of its topics
// longer ago than Retention, in small batches, what is older than InboxRetention from the inbox, and the traces of
// forwarders that are gone for an hour.
package forwarder
