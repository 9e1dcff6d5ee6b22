// Package memory is a database in memory for users' tests: package outboxtest makes handles of it. It is a fake. It
// knows what this module does with a database, and no SQL.
//
// # An operation for a statement
//
// Core, middleware, inbox and idempotency say what they want by a statement of package sqltext. Here such a statement
// is the name of an operation in Go (operations), which does to the rows in memory what the statement does to those of
// Postgres. So whatever uses a handle runs unchanged, and one conformance suite compares the two. A statement that has
// no operation, of a user, of the forwarder, of package admin, is an error that says so. Tables have their default
// names.
//
// # Rows
//
// A row has the version that was committed last and, while a transaction holds it, one that only that transaction sees.
// A transaction holds a row from its first change of it on, or from a lock, until it ends, or is rolled back to a
// savepoint before that. A transaction that wants a row that is held waits, or passes it by where the statement says
// SKIP LOCKED, and then looks at the row again as it is by then. That is READ COMMITTED. Two that wait for each other
// are a deadlock: the second of them gets SQLSTATE 40P01. With REPEATABLE READ or more a change of a row that was
// committed after the first statement is 40001, as in Postgres, but reads see the newest. After a failed statement a
// transaction can only be rolled back, to a savepoint or as a whole.
//
// One mutex guards everything, and is given up only to wait for a row.
//
// # Time
//
// The clock is that of package time. In a bubble of testing/synctest it is that of the bubble, so that what is due in
// an hour is due after a Sleep of an hour. The database must be made inside of the bubble.
package memory
