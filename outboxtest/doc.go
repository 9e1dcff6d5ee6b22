// Package outboxtest is for tests of your handlers and of what publishes in a transaction, without a Postgres and
// without a broker.
//
//	NewDB       a handle on a database in memory
//	Handle      one message through middleware.Stack: was it acked, and what was published?
//	Written     what the transaction in a context has written so far
//	Drain       what a forwarder would publish now
//	Publisher   a message.Publisher that records, fails on cue and blocks
//	NewPostgres a handle on a real database, in a schema of the test's own
//
// # What the database in memory is
//
// It is a fake. On it work outbox.InTx with commits, rollbacks and savepoints, outbox.Publisher and Decorator, the
// middlewares with their deduplication, recorded failures and dead letters, and package queue: Store, Dispatcher,
// Subscriber, Ingest and NewWebhook, with due times, attempts, owners and leases, and package idempotency with its
// stored answers. The same code runs on it as on
// Postgres, and the same conformance suite passes on both.
//
// It runs no SQL. outbox.PgxTx and SQLTx return outbox.ErrTxKind: let a handler write through an interface of yours,
// and give it a fake one here; what the fake writes is not undone when the transaction is rolled back. A Forwarder,
// package schema and package admin return an error that says so. It says nothing about isolation levels, plans, locks
// between your tables and what a broken connection does: for that, and for handlers that are SQL for the greater part,
// take a real Postgres: NewPostgres. Handle and Drain work there just as well.
//
// # Time
//
// Make the database in a bubble of testing/synctest, and its clock is that of the bubble: after time.Sleep(time.Hour) a
// message with a delay of an hour is due, at once.
package outboxtest
