// Package middleware handles each message of a Watermill Router once, in one transaction: the handler's writes, the
// messages that it returns and the record that the message was handled are committed together or not at all.
//
//	stack, err := middleware.Stack(pub, middleware.StackConfig{Service: "booking"}, logger)
//	...
//	router.AddMiddleware(stack...)
//
// From the outside in, Stack is
//
//	ErrorHandler  acks, nacks or dead-letters, and records failures
//	Tx            BEGIN, then COMMIT or ROLLBACK
//	Inbox         skips a message that was already handled
//	Outbox        writes the messages that the handler returns
//
// Each part also works alone. Inbox and Outbox need a transaction around them (Tx, outbox.InTx, WithPgxTx or WithSQLTx)
// and fail without one. Inbox without Outbox is for handlers that return no messages.
//
// # Other middlewares
//
// Put middlewares that swallow errors (PoisonQueue) outside Tx; otherwise Tx commits the failed handler's writes. Put
// Retry outside ErrorHandler: use PoisonQueue, Retry, Stack, in this order. Put middlewares that change the returned
// messages (CorrelationID) inside Outbox. Do not use Watermill's Deduplicator and InstantAck: they lose messages that
// fail.
//
// # Promises
//
// A failed handler leaves no writes behind. Its message is nacked after ErrorHandlerConfig.Backoff and redelivered.
// After ten failed attempts, and at least an hour after the first, it is dead and published to the dead-letter topic.
// outbox.Poison makes it dead immediately; outbox.RetryAfter retries without counting the attempt. Serialization
// failures and deadlocks are retried after 10 ms, doubling to 1 s. Handlers must not end the transaction:
// outbox.ErrTxEnded.
//
// With a broker that delivers one message of a partition at a time, such as watermill-kafka, a failing message stops
// its partition until it succeeds or is dead.
//
// docs/guides/how-it-works.md has the rules for each of Watermill's middlewares.
//
// The examples are compiled and not run: they need tables on PostgreSQL.
package middleware
