// Package core has the handle, the transaction and the writing of messages that all public packages share. outbox.DB
// and outbox.Publisher are defined over DB and Publisher, so pointers convert and nothing is exported that only our
// packages need.
//
// # Terms
//
//   - handle: a DB, a pool with one set of tables.
//   - transaction: begun by InTx, or joined with WithTx, and then committed by other code. Scope: a transaction, or a
//     savepoint in it that a nested InTx made, as a context carries it.
//   - call tree: one delivery of a message by a Router, or everything outside Routers. A scope counts only in the call
//     tree that put it into the context, because contexts travel with messages.
//   - record: a message that was checked and is ready to be written: immediately, or with COMMIT.
//   - wake: notify a forwarder that a transaction with messages was committed.
//
// # A transaction
//
// Scopes of a transaction are nested, and exactly one is innermost. A nested InTx with the context of another scope is
// ErrTxBusy: two overlapping savepoints would undo each other's work. One mutex guards all mutable state of a
// transaction and is held while one of our statements runs. So a goroutine that outlives the function of InTx finds the
// scope ended, instead of a connection that others use. User code is never called under the mutex.
//
// Messages that wait for COMMIT belong to their scope. They move to the outer scope when the savepoint is released, and
// are dropped when it is rolled back. The same is true of the functions of AfterCommit.
package core
