// Package outboxtest is for tests of handlers and of code that publishes in a transaction, without a Postgres and
// without a broker.
//
//	db := outboxtest.NewDB(t)
//	got, err := outboxtest.Handle(t, db, handler, msg, middleware.StackConfig{Service: "booking"})
//	published := outboxtest.Drain(t, db)
//
//	NewDB       a handle on a database in memory
//	Handle      one message through middleware.Stack: was it acked, and what was published?
//	Written     the messages that the transaction in a context has written so far
//	Drain       the messages that a forwarder would publish now
//	Publisher   a message.Publisher that records, fails on cue and blocks
//	NewPostgres a handle on a real database, in a schema of the test's own
//
// # The database in memory
//
// It is a fake that passes the same conformance suite as Postgres. On it work outbox.InTx with commits, rollbacks and
// savepoints; outbox.Publisher and Decorator; the middlewares with deduplication, recorded failures and dead letters;
// package queue (Store, Dispatcher, Subscriber, Ingest, NewWebhook) with due times, attempts and leases; package
// idempotency.
//
// It runs no SQL. outbox.PgxTx and SQLTx return outbox.ErrTxKind: let a handler write through an interface of yours and
// pass a fake. A rollback does not undo the writes of that fake. A Forwarder, package schema and package admin return
// an error. Isolation levels, plans, locks between your tables and broken connections are not simulated: test those,
// and handlers that are mainly SQL, with NewPostgres. Handle and Drain work there too.
//
// # Time
//
// In a bubble of testing/synctest the database uses the bubble's clock: after time.Sleep(time.Hour) a message with a
// delay of an hour is due, without waiting.
package outboxtest
