// Package core has the handle, the transaction and the writing of messages that all public packages share. outbox.DB
// and outbox.Publisher are defined over DB and Publisher, so pointers convert and nothing is exported that only our
// packages need.
//
// # The words
//
//   - handle: a DB, a pool with one set of tables.
//   - transaction: begun by InTx, or joined with WithTx, whose COMMIT is not ours. Scope: a transaction, or a savepoint
//     in it that a nested InTx made, as a context carries it.
//   - call tree: one delivery of a message by a Router, or all that goes on outside of Routers. A scope counts only in
//     the call tree that put it into the context, because contexts travel with messages.
//   - record: a message that was checked and is ready to be written. Written at once, or waiting for COMMIT.
//   - wake: a forwarder is told that a transaction with messages was committed.
//
// # A transaction
//
// Scopes of a transaction are within each other, and there is one innermost. A nested InTx with the context of another
// scope is ErrTxBusy: two savepoints that overlap would undo each other's work. One mutex guards all of a transaction
// that changes, and is held while a statement of ours runs. So a goroutine that outlives the function of InTx finds the
// scope ended, and not the connection in other hands. No function of the user's is called under it.
//
// What waits for COMMIT belongs to its scope and goes to the outer one when a savepoint is released, or with it when it
// is undone. So do the functions of AfterCommit.
package core
