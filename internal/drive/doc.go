// Package drive wraps the two ways to reach Postgres, pgx and database/sql, in one set of interfaces.
//
// # A transaction
//
// With pgx a transaction begins with its first statement: BEGIN is sent before it in the same round trip, and COMMIT
// follows the last pending statement. With database/sql each is a round trip, and nothing waits for COMMIT.
//
// A handler must not end the transaction that it gets. The pgx.Tx returns an error; a *sql.Tx cannot, and plain SQL can
// end either of them, and begin or chain another transaction. So a transaction is marked with a setting that ends with
// it: at BEGIN with pgx, and with database/sql when it is handed out. Writes into a marked transaction, and COMMIT,
// check the mark in the same round trip (sqltext.CheckTx).
//
// A rollback to a handler's own savepoint undoes messages captured after it only if they were written, so nothing waits
// for COMMIT while such a savepoint may exist (Tx.Later). Savepoints in plain SQL are recognised by the keyword.
//
// # COMMIT
//
// The reply to COMMIT decides. After an ERROR, or the tag ROLLBACK, the transaction is rolled back. Anything else
// instead of a reply, including FATAL and PANIC, is ErrCommitUnknown, and so is success after the end of the context: a
// COMMIT that was cancelled has stopped waiting for its standby.
package drive
