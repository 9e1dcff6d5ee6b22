// Package outboxtest is for tests of handlers, of code that publishes in a transaction, and of publishers for a
// Forwarder.
//
//	db, pool := outboxtest.NewPostgres(t, os.Getenv("TEST_DATABASE_URL"))
//	got, err := outboxtest.Handle(t, db, handler, msg, middleware.StackConfig{Service: "booking"})
//	published := outboxtest.Drain(t, db)
//
//	NewPostgres   a handle on a database, in a schema of the test's own
//	Handle        one message through middleware.Stack: was it acked, and what was published?
//	Drain         the messages that a forwarder would publish now
//	Publisher     a message.Publisher that records, and fails or blocks when told to
//	TestPublisher the conformance suite for publishers
//
// A handler and what it publishes commit together, so a test of both needs PostgreSQL. A schema with all tables takes
// about 50 ms, and tests run in parallel, each in its own schema.
//
// The examples are compiled and not run: they need tables on PostgreSQL.
package outboxtest
