// Package cursor decides which ids the forwarder reads next, so that rows are found in an order that respects commits,
// although ids are not assigned in that order. It is pure: it has no clock, no database and no rows, only the answers
// of reads. One goroutine drives it: Next, then Complete or Failed, and other events only between two reads.
//
// # The protocol
//
// Each lane has a cursor: all ids up to it were read, except rows that open transactions may still commit. A read is
// one statement, so one snapshot decides everything that it returns. It also returns that snapshot (the transactions in
// progress, and the next transaction id) and the value of the id sequence.
//
// A transaction gets its id before its rows get theirs. So every open transaction has a bound: the value of the
// sequence at a read that did not yet list it, which is below all of its rows. Transactions that had no id yet at the
// last read are tracked as ranges of ids (segments), each with one bound.
//
// The next read starts at the lowest bound of the tracked transactions that its own snapshot no longer shows in
// progress, or at the cursor if that is lower. So a read that returns a message has returned, in the same or an earlier
// read, every message that was committed before it was written.
//
// A long transaction that has not written to the outbox would make its end read far back. So its locks are inspected:
// without a lock on the table it has not written, and its bound moves up (WritersSeen).
//
// # Incarnations
//
// After a crash, a failover or a TRUNCATE ids may mean other messages. A read therefore also returns the name of the
// server's incarnation. If it has changed, or the sequence went back, the answer is discarded and all lanes are taken
// again.
//
// # Size
//
// A read covers a bounded range of ids (limiter.span), which adapts to how long reads take, and returns a bounded
// number of rows and bytes. While the lanes' cursors are equal and most rows are ours, all lanes are read as a single
// range of the primary key, which is cheaper.
package cursor
