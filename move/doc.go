// Package move moves the pending messages of another outbox into this one, and those of this one back into Watermill's,
// so that trying this module is no one-way street. docs/guides/moving.md says how; outside of a move you do not need
// this package.
//
// # A batch is one transaction
//
// Each batch of rows is read, written where it belongs and marked as done where it came from in one transaction, so a
// row is always in exactly one of both places. Whatever ends a move, an error, a crash, a commit whose answer got lost,
// the next call goes on where it stopped and brings nothing twice.
//
//   - A log of watermill-sql (DefaultPostgreSQLSchema) has a position per consumer group, in its table of offsets.
//     Taking a row moves that position, under the lock with which Watermill's subscriber reads: the forwarder over
//     there may run meanwhile, and each row goes one of both ways. Rows are taken in the subscriber's order, and as
//     late: not before every transaction that is older than theirs has ended.
//   - A queue (PostgreSQLQueueSchema, and the delayed publisher's) marks each row as acked. Its rows are locked as its
//     subscriber locks them.
//   - A table of one's own is updated, or deleted from, by a statement that the caller gives. Its relay must be
//     stopped.
//   - Our own rows, on the way back, are deleted. No forwarder may run meanwhile, because what one publishes is in no
//     lock.
//
// A row that another session has locked is waited for no longer than LockTimeout says. Then the error names the
// session, if it is still there. What was moved stands in the audit log, written by the batches themselves; a call that
// moves nothing leaves no entry.
//
// # What a message is afterwards
//
// UUID, topic, payload and metadata are those that Watermill's forwarder would have published, byte for byte: its own
// code opens the envelopes, with the Marshaler that wrote them. Messages get their places in the outbox in the order in
// which they are taken. Which of them must be published one after the other is said by their keys, as for all messages
// here, and the keys come from the outbox.Publisher that a move is made with.
//
// A message that is delayed stays so: what the row of a delayed queue says of it becomes its own delay. Watermill's
// other tables know no delays, so on the way back to them such messages stay where they are until they fall due.
//
// The example is compiled and not run: a move needs the tables of both sides, on PostgreSQL.
package move
