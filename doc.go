// Package outbox is the write side of a transactional inbox and outbox for Watermill on PostgreSQL: database handles,
// the transaction in the context, and a message.Publisher that writes messages into the outbox table in that
// transaction. Package middleware runs a Router's handlers in such transactions, and package forwarder publishes
// committed messages to any Watermill publisher.
//
//	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, logger)
//	pub, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, logger)
//	err = outbox.InTx(ctx, db, func(ctx context.Context) error {
//		// SQL with outbox.PgxTx(ctx)
//		return pub.PublishContext(ctx, "orders", msg)
//	})
//
// A DB is a handle on a pgxpool.Pool (FromPgx) or on a *sql.DB of any Postgres driver (FromSQL), with table names and
// observers. All other packages take it.
//
// # Transactions
//
// InTx commits when its function returns nil. WithPgxTx and WithSQLTx use a transaction that the caller began and will
// commit. Inside, PgxTx or SQLTx returns the native transaction. A nested InTx is a savepoint; nested calls run one at
// a time. With pgx, BEGIN travels with the first statement, and a handler's messages with COMMIT.
//
// A transaction belongs to the call tree that began it: a Router's handler does not use a transaction that travelled
// with a message through an in-process Pub/Sub. Only the code that began a transaction may end it. If a handler ends
// it, this is detected at COMMIT at the latest and nothing is published.
//
// # Promises
//
// A message is in the outbox if and only if its transaction committed. If the connection breaks during COMMIT, the
// outcome is unknown: InTx returns ErrCommitUnknown and does not retry.
//
// Messages with the same ordering key are published in the order in which their transactions followed one another. The
// key comes from MetadataKey, PublisherConfig.Key or the aggregate conventions. Without a key, order is not promised.
package outbox
