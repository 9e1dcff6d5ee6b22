// Package outbox is the write side of a transactional inbox and outbox for Watermill on PostgreSQL:
// database handles, the transaction in the context, and a message.Publisher that writes messages into
// the outbox table in that transaction. Package middleware puts a Router's handlers into such
// transactions, and package forwarder publishes what was committed to any Watermill publisher.
//
// # The transaction
//
// A DB is a handle on a pgxpool.Pool (FromPgx) or on a *sql.DB of any Postgres driver (FromSQL). InTx
// begins a transaction, puts it into the context and commits it when the function returns nil; WithTx
// puts one there that the caller began and will commit. Code in between gets its native transaction
// from TxFromContext, and everything that publishes with that context writes to the outbox inside it.
// A nested InTx is a savepoint.
//
// With pgx a transaction that begins lazily sends its BEGIN together with its first statement, and what
// was captured for the end of the transaction (Publisher.Capture) together with its COMMIT.
//
// # What is certain
//
// A message is in the outbox if and only if its transaction committed. If the connection broke while
// COMMIT was under way nobody can know, and InTx says so with ErrCommitUnknown; it is never repeated
// here. A consumer behind the inbox makes a repetition by the broker harmless.
//
// # Order
//
// Messages with the same ordering key leave in the order in which their transactions followed one
// another. The key comes from the metadata MetadataKey, from PublisherConfig.KeyFunc, or from the
// aggregate conventions; without a key no order is promised.
package outbox
