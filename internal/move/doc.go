// Package move moves the pending messages of another outbox into this one, and back into Watermill's tables, for
// outboxctl. docs/guides/moving.md has the steps.
//
// # Promises
//
// A message is always in exactly one of the two outboxes: each batch is read, written and marked as done in one
// transaction. If a move ends early, after an error, a crash or a lost reply to COMMIT, the next call continues and
// moves nothing twice.
//
// UUID, topic, payload and metadata are byte for byte what Watermill's forwarder would have published. Ordering keys
// come from the outbox.Publisher. Delays are kept; ToWatermill leaves delayed messages in the outbox if the table
// cannot delay them.
//
// Watermill's own forwarder may run during a move from its tables. The relay of your own table must be stopped, and so
// must every forwarder of this module during ToWatermill.
//
// A move waits at most LockTimeout for a row that is locked by another session; then the error names the session. Moves
// are recorded in the audit log.
package move
