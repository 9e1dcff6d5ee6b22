// Package outbox is the write side of a transactional inbox and outbox for Watermill on PostgreSQL:
// database handles, the transaction in the context, and a message.Publisher that writes messages into
// the outbox table in that transaction. Package middleware puts a Router's handlers into such
// transactions, and package forwarder publishes what was committed to any Watermill publisher.
//
// # The handle
//
// A DB is a handle on a pgxpool.Pool (FromPgx) or on a *sql.DB of any Postgres driver (FromSQL), with the names of its
// tables and with observers. All other parts take it, and so cannot disagree about any of that. What package observe
// lists can be seen through it.
//
// # The transaction
//
// InTx begins a transaction, puts it into the context and commits it when the function returns nil; WithPgxTx and
// WithSQLTx put one there that the caller began and will commit. Code in between gets its native transaction from PgxTx
// or SQLTx, and everything that publishes with that context writes to the outbox inside it. A nested InTx is a
// savepoint; they run one at a time.
//
// A transaction belongs to the call tree that began it. Contexts travel with messages through in-process Pub/Subs, so a
// handler of a Router finds none but those that were begun for its own call.
//
// With pgx a transaction begins lazily: BEGIN travels together with its first statement, and what a handler returns
// together with COMMIT. Only the code that began it ends it. Whatever a handler does to end it, by a method or by plain
// SQL, is found at the latest at COMMIT, and nothing is published for a transaction that is gone.
//
// # What is certain
//
// A message is in the outbox if and only if its transaction committed. If the connection broke while
// COMMIT was under way the outcome is unknown, and InTx says so with ErrCommitUnknown; it is never repeated
// here. A consumer behind the inbox makes a repetition by the broker harmless.
//
// # Order
//
// Messages with the same ordering key are published in the order in which their transactions followed one
// another. The key comes from the metadata MetadataKey, from PublisherConfig.Key, or from the
// aggregate conventions; without a key no order is promised.
package outbox
