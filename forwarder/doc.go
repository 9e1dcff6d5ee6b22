// Package forwarder is the read side of the outbox: it drains the table into any Watermill publisher
// (Forwarder) or delivers it as a subscriber (Subscriber). Both are faces of one engine, which reads
// rows, has each published or delivered, and settles what became of it. This page explains its protocol; the names in
// parentheses are the files that hold each part.
//
// # What is promised
//
//   - A committed message is published, or is visible as dead with its error. No crash, restart, slow
//     transaction or bad message makes one disappear; one of a rolled-back transaction is never sent.
//   - It may be sent twice after a crash or a time-out, always under the same UUID.
//   - If one transaction committed before another inserted a message with the same key, its message
//     is published first: across retries, several forwarders and the hand-over of lanes. A repetition may follow
//     later messages. A delayed message takes its place when it falls due and blocks no other.
//   - A message that fails blocks its own key and nothing else. A broker that cannot be reached costs no message an
//     attempt, if the publisher's errors say so, as those of packages kafka and nats do, or all else that is
//     published fails as well: see Failures, also for the one message that this cannot tell from a bad one.
//   - No transaction is open while a broker is talked to.
//
// # Rooms
//
// What decides is pure: it knows no clock, lock, context, logger or database, and, but for machine, none of the others.
// A test drives all of it through random schedules.
//
//	internal/machine  what the goroutines share: the lanes, who may publish, when to read; it joins the next three
//	internal/window   which ids to read next, so that rows are found in an order that respects commits
//	internal/board    rows, keys, topics, calls; what to publish, to read again and to settle. Its page has the words
//	internal/lease    which lanes to take and to give back
//	internal/nap      whether there may be something new in an outbox that no forwarder reads
//
// The engine (engine.go) does what they decide. It tells the machine what happened in one function, step, which is the
// only place where its lock is taken; what came of an event is carried out there as signals, and nothing that may wait
// is called. Its goroutines:
//
//	reader      all reads, and loading blocked keys; on a connection of its own (reader.go, fetch.go, payloads.go,
//	            collect.go, raise.go, heads.go)
//	workers     publish, one message each at a time, until there is nothing to publish now (workers.go)
//	settler     writes results back (settler.go, settler_failed.go, span.go, batch.go)
//	keeper      the lease and the lanes, on a connection of its own (keeper.go, lanes.go, join.go)
//	timer       one timer for all calls (run.go)
//	maintainer  what is in no hurry (maintain.go, clean.go, pauses.go, untaken.go); and one that listens (listen.go)
//	reporter    calls the logger and the observers, as they may hang (report.go, board_log.go, observers.go)
//
// Code of the user's runs in workers (the publisher, Classify, observers of publishes) and in the reporter, under no
// lock, and its panics end nothing but its own call.
//
// The order of locks: Group.mu is taken before an engine's mu (mood), never the other way round, as an engine does not
// know of its Group. Group.wokenMu is taken under the locks of handles, so nothing is called under it. callContext.mu
// and the reporter's are taken with no other held: step lets go of mu before it recalls a call.
//
// # Lanes (internal/lease, keeper.go, lanes.go)
//
// Keys are hashed to 64 lanes, each owned by at most one forwarder of a scope. A forwarder has one heartbeat
// row, renewed at a third of its lease time. A lane changes hands by an update
// that compares and raises its epoch: when its owner gave it back, or when the owner's lease expired on the
// database's clock. Surplus lanes are given back only when nothing of them is under way. A forwarder that shuts
// down has no share any more and gives back each lane as soon as nothing of it is under way. A lane and its epoch are a
// term, and all that is in memory belongs to one; a lane that is ours in the table and not in memory is retaken under a
// higher epoch. The order of messages rests on epochs alone; clocks only limit duplicates: no publish starts after the
// lease could have run out on this process's monotonic clock, and what no handler of a Subscriber has received by then
// is taken back.
//
// Forwarders whose topics overlap in part do not work at the same time: the later set waits, with its row in the
// table, until the other has ended. A forwarder that starts meanwhile waits behind it.
//
// # Reading in order (internal/window, reader.go)
//
// Row ids are handed out in one order and transactions commit in another, so a row can appear below
// ids that were read long ago. Waiting until no older transaction is open would stall behind every long one.
// Instead each read, one statement for all lanes, also returns its snapshot: which transactions were in
// progress, and which id the next one will get. Each such transaction has a bound that all its rows are
// above, because the transaction id is assigned before the row ids. The next read starts each lane at the
// lowest bound of those transactions that its own snapshot no longer shows in progress, or at the lane's mark
// if that is lower. One snapshot decides both, so a read that returns the later message of a key has returned
// the earlier one too. Rows that are read again while they are in memory are dropped by their ids, which
// leave memory only before a read that starts after their settling committed. One goroutine does all reads.
//
// A read covers a stretch of ids past the mark, which adapts to the time that it takes. It is taken over as a whole or
// not at all, but a thousand rows at a time, so that the workers have their turn in between. At rest, and where most of
// a backlog is ours, all lanes are read up to the same id, as one range of the primary key; that costs less, and the
// rows of a range are settled together.
//
// A read is bounded in bytes as well. Rows that are much larger than there is room for, taken on average, come without
// payload and metadata; these are read afterwards by id, what was asked for first, then the oldest, as far as there is
// room, and one in any case (payloads.go). A lane is taken for read up to the first row that there was no room for. The
// second statement has another snapshot, which does no harm: which rows there are, and in what order, the first one has
// said.
//
// Each read also names the life of the server: when it was started, a token that a crash or a promotion empties, and
// the file of the sequence of ids, which TRUNCATE ... RESTART IDENTITY replaces. In another life, ids may mean other
// messages and what is known of transactions means nothing, so all that was read is forgotten and read anew, also what
// blocks keys, which is loaded before the first read and names its life as well. The lanes
// are retaken under epochs that this forwarder never had of them, whatever became of the table, so that no failure of
// before counts. What was published in another life is settled only for rows that have the message's uuid. A sequence
// that is lower than before is another life too, since setval leaves its file as it is. If it has passed its old value
// again before the next read, setval goes unseen: the database has no trace of it.
//
// # Publishing (internal/board, workers.go)
//
// Up to Concurrency Publish calls are under way, one message each, because a Watermill publisher does not say
// which of several failed. Messages of one key follow one another; those without a key wait for none. What
// cannot be sent yet is not kept in memory: rows of a blocked key, of a paused topic, or behind a long queue of
// their own key are parked: their ids are kept in order, and they are read again by id when their turn
// comes. If too many are parked, the lane is read again from the first for which there was no room.
//
// A call that takes longer than a second gives up its place among Concurrency, but no topic has more calls than that,
// so that a topic whose publishes hang stops only itself. When a call times out its context ends; should it succeed
// later, that counts. An error that comes after the end of its context says nothing of its own. The time-out of a
// publisher that says whose fault its errors are, as it has done with one of them, is not charged to the message: the
// topic pauses. That of another one is an error without a verdict, see Failures.
//
// # Settling (settler.go, settler_failed.go, batch.go)
//
// Results are written back in batches, off the publishing path: those with neighbouring ids as a range that leaves out,
// by their ids, the few between them that are not of the batch (span.go), others id by id. After an error that one row
// may have caused the parts are halved until it stands alone, and is retried by itself; rows that another session keeps
// locked are skipped. That a message was published is final, whichever forwarder says it. That it failed counts only
// under the lane's current owner and epoch, which the statement locks: otherwise the failure of a forwarder that lost
// its lane would let the next owner's later messages pass, or block a key for ever.
//
// # Failures (verdict.go, link.go, confirms.go, internal/board)
//
// Each error has a verdict. It is that of Config.Classify, or else the one that the error carries, as a PublishError
// somewhere in its chain: so no decorator around a publisher hides it. Unavailable pauses the topic, charges nothing,
// and sends one trial message after a while. Retry charges an attempt and blocks the key until the next one. Permanent
// makes the message dead at once. A key is blocked by the rows that wait for another attempt: that is derived from
// attempts > 0, not stored, and the forwarder that takes a lane reads it from there before the first read. After
// MaxAttempts, and at least MinDeadAge old, a message is dead. The statement that marks it so also writes its dead
// letter, if Config.DeadLetterTopic is set: neither is there without the other.
//
// An error without a verdict may be the fault of the message or of the broker. A circuit breaker decides (breaker.go in
// internal/board):
//
//   - The first four messages that fail in a row on a topic, or on all topics of its publisher, are charged an attempt
//     each. A success in between starts the count again. A message that fails several times in a row counts once, so one
//     that fails alone, with no other to compare it with, is charged each time; there MinDeadAge protects it.
//   - The fifth opens the breaker: its topic is paused and nothing is charged. An outage that no error names costs four
//     attempts in each forwarder process, for each publisher.
//   - While the breaker is open, one message at a time probes the topic, after Config.OutageBackoff, uncharged. The probe
//     is the message that came last, then one of another key each time, so that messages that fail on their own do not
//     stop the others for long. A success closes the breaker.
//   - If everything that a topic ever gets fails, it stays paused until an operator discards its messages: it is in
//     outbox_topics with the error, and on the page.
//
// Each topic has a pause of its own, so all topics of all forwarders are back within the maximum of OutageBackoff, 5
// seconds by default, without having to hear of each other.
//
// # Publishers without a verdict
//
// Any Watermill publisher can be given to New. What is promised above begins and ends with what it says:
//
//   - Publish must not return nil before the broker has the message. watermill-amqp's does, unless
//     Publish.ConfirmDelivery is set in its Config: without it, what RabbitMQ does not get is lost, and marked
//     published. It also returns nil for a message that RabbitMQ cannot route to any queue; declare queues and bindings
//     first, or an alternate exchange. New warns of both in the log. It recognises the publisher by the name of its
//     type, also behind a decorator that holds it in a field.
//   - A publisher that has a method IsConnected() bool, as that of watermill-amqp, is asked before it publishes: what
//     fails while it is not connected was not sent, so the topic pauses and nothing is charged. A decorator hides the
//     method, unless it has one of its own.
//   - Other errors without a PublishError are judged by the rule above, and a time-out likewise. To do better, return a
//     PublishError from a publisher of your own, or set Config.Classify.
//   - Messages of one key are published one after another. Whether the broker keeps that order is up to the publisher:
//     it must send a key to the same partition or queue each time.
//
// # Maintenance (maintain.go, recheck.go)
//
// A sweep looks for rows that were made pending by hand, and blocked keys are compared with the table, each about a
// twentieth of the time (machine.Pace). So is the first message of each key that waits for a topic: an operator who
// settles or deletes it lets the rest of the key go on, on other topics. One forwarder of the scope deletes what was
// published of its topics longer ago than Retention, in small batches, what is older than InboxRetention from the
// inbox, and the traces of forwarders that are gone for an hour. Paused topics are written to a table, where SQL sees
// them.
//
// # Many databases (group.go, group_schedule.go, group_look.go, group_run.go, internal/nap)
//
// A Group has an engine for each database of a fleet that has something to do, and for no other. Such an engine has no
// connection of its own: the lease is renewed, and rows are read, through the pool. It is stopped when it has had
// nothing to do for IdleAfter. The database is asleep then, and is looked at: is the number up to which ids were handed
// out still the one that is remembered? That is one row of the sequence; where schemas share a database, one statement
// for all of them. If it is another, and once a minute in any case, the look also asks whether anything is ready, and
// when the first message falls due. A number is remembered only when all transactions have ended that may have taken an
// id up to it, as a row appears at its commit (internal/nap). Commits of this process wake the database without a look.
//
// Looks and engines each have places, so that many databases share few connections, and one that hangs does not keep
// its place: a look gives it up after a quarter of a second, an engine when its database does not answer for a second.
// What fails is left alone for a second, then for longer, up to a minute: a pool that cannot be reached as a whole, and
// a database that answers with an error by itself. When more databases have something to do than there are places, they
// take turns.
//
// # Stopping
//
// Nothing is read any more, and no call starts. Lanes are given back as they become free. When the last call has
// returned, or CloseTimeout is over and its context has ended, what is left is settled, the lanes are given back, the
// heartbeat row is deleted, and the last reports are made.
package forwarder
