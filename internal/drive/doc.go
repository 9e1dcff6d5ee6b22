// Package drive is the two ways to reach Postgres, pgx and database/sql, behind one set of interfaces.
//
// # A transaction
//
// With pgx a transaction begins with its first statement: BEGIN travels in front of it. COMMIT travels behind the last
// pending statement. With database/sql each is a round trip, and nothing waits for COMMIT.
//
// The transaction that a handler gets is not to be ended by it. The pgx.Tx refuses; a *sql.Tx cannot, and plain SQL can
// end either, and begin or chain another transaction. So a transaction is marked with a setting that ends with it: with
// BEGIN on pgx, on database/sql when it is handed out. What is written into a marked transaction, and COMMIT, check the
// mark in the same round trip (sqltext.CheckTx).
//
// A savepoint of the handler's own undoes what is captured behind it only if that was written, so while there may be
// one (Tx.Later) nothing waits for COMMIT. Savepoints by plain SQL are known by the word.
//
// # COMMIT
//
// Its answer decides. An ERROR rolled back; the tag ROLLBACK as well. Whatever else comes instead of an answer, FATAL
// and PANIC among it, is ErrCommitUnknown.
package drive
