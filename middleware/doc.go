// Package middleware handles each message of a Watermill Router once, in one transaction: what the handler
// writes and the messages that it returns are committed together with the note that the message was
// handled, or not at all.
//
//	stack, err := middleware.Stack(pub, middleware.StackConfig{Service: "booking"}, logger)
//	...
//	router.AddMiddleware(stack...)
//
// # The way of a message
//
//	Outcomes   keeps the error, if there is one, and decides: ack, nack or dead letter
//	  Tx         BEGIN
//	    Inbox      notes (service/handler, message id); noted before: skip and ack
//	      Outbox     waits for what the handler returns
//	        handler    writes with the transaction of its context (outbox.PgxTx, SQLTx), returns messages
//	      Outbox     takes the messages
//	    Inbox      makes sure that none are left for the Router to publish
//	  Tx         writes the messages and COMMIT, in one round trip with pgx; or ROLLBACK
//	Outcomes   nil: the Router acks
//
// With pgx, BEGIN shares the round trip of the inbox statement, so a handler with one statement of its own
// costs three round trips in all.
//
// Each part works alone: Tx; Tx and Inbox; Tx and Outbox; all of them; each with Outcomes or without. Inbox and Outbox
// need a transaction around them, of Tx, outbox.InTx, WithPgxTx or WithSQLTx, and say so if it is missing. Inbox
// without Outbox is for handlers that return no messages: the Router publishes those after the commit, and if that
// failed, the redelivery would be skipped as a duplicate.
//
// # Order, and Watermill's own middlewares
//
// The first middleware added is the outermost. The order of Stack is the only one that holds, with two rules for
// everything else:
//
//   - What turns an error into nil, such as PoisonQueue, goes outside of Tx, or Tx commits what failed.
//     What repeats the handler, such as Retry, goes outside of Outcomes: after a failed statement the
//     transaction is of no more use, and each attempt is to be recorded. So: PoisonQueue, Retry, Stack.
//   - What changes or adds to the returned messages, such as CorrelationID, goes inside of Outbox.
//
// A handler's own AddMiddleware lands inside of what the Router has. Where Retry, PoisonQueue, IgnoreErrors,
// Deduplicator or Duplicator are directly inside of the Stack, or anywhere between it and a handler that asks for its
// transaction (PgxTx, SQLTx, Publish, or an InTx within it), Tx finds them at the first message, before the handler can
// write: the message fails with an error that names the middleware, is charged no attempt, and so is every one after
// it. What Tx cannot find is a middleware of your own that swallows errors, one of Watermill's around a handler that
// asks for the transaction only in another goroutine, and CQRS handlers with AckCommandHandlingErrors, see below.
//
// Watermill's Deduplicator and InstantAck lose messages that fail, wherever they are: the one remembers a message
// before it was handled and drops it at its redelivery, the other acks it before. Inbox is the deduplicator here.
//
// While Watermill's CircuitBreaker is open, it fails messages without a call of the handler. Outside of the Stack they
// are nacked at once, in a tight loop; inside, each is charged an attempt. Put it inside, with a middleware of yours
// around it that makes an outbox.RetryAfter of gobreaker.ErrOpenState.
//
// Recoverer may be anywhere: a panic rolls back and goes on, unless its message is acked. Timeout goes outside of Tx,
// which keeps the deadline of the message's context. CQRS handlers with AckCommandHandlingErrors swallow errors inside
// of everything; they call outbox.SetRollbackOnly.
//
// # Failures
//
// A failed handler leaves nothing behind. Its error is recorded in the inbox, and its message is nacked after a wait
// that grows with the failures (OutcomesConfig.Backoff); the broker redelivers it. After ten failures, if the first was
// an hour ago, it is dead like poison. Serialization failures and deadlocks are repeated at once. If the connection
// breaks during COMMIT the outcome is unknown (outbox.ErrCommitUnknown): the message is nacked and the inbox makes its
// redelivery harmless if it was committed. Without Inbox it is handled twice.
//
// Where a broker hands out one message of a partition at a time, as watermill-kafka does, a message that fails stops
// its partition until it succeeds or is dead. Return outbox.Poison for what can never succeed, lower MinDeadAge and
// MaxAttempts, or store messages first (package queue, or a second outbox) and handle them behind that.
//
// A handler that returns outbox.RetryAfter(err, wait) is called again after the wait, and the attempt is not charged. A
// handler that cannot work as it is wired is not charged either, or a bad deploy would turn messages into dead letters.
//
// A handler that returns outbox.Poison(err) has its message marked dead in the inbox, so that copies are
// skipped, and published to the dead-letter topic through the outbox. After Requeue of package admin the next copy is
// handled.
//
// A handler must not end the transaction. Its pgx.Tx refuses to; with a *sql.Tx or by plain SQL it can, and is found
// out at the end: the message is nacked with outbox.ErrTxEnded, and what it returned is not written. What it committed
// stays, but for the inbox's note, which Outcomes takes back: the message is redelivered instead of being skipped.
//
// # Closing
//
// A Router that closes cancels the contexts of messages in flight at once. Handlers in Tx do not see that: they have
// until TxConfig.Timeout, and Router.Close waits for them as long as its CloseTimeout says. Should the subscriber be
// gone before the ack, the message is redelivered and the inbox skips it.
//
// # Behind a watermill-sql subscriber
//
// Such a subscriber has a transaction of its own in the message's context and Tx does not join it. It commits that
// transaction also after a nack, when its AckDeadline passes or when it is closed, with whatever a failed handler
// wrote; it reads at REPEATABLE READ and sends a nacked message again within the same snapshot, where Inbox cannot see
// what others did; and one transaction spans up to a hundred messages. A transaction of the handler's own, with Inbox,
// gives each message once without any of that. The subscriber's transaction keeps a connection busy meanwhile, so the
// pool needs more than one for each handler.
//
// # Behind our own outbox
//
// A message may come from the outbox itself, by a Subscriber of package forwarder (outbox.DeliveryFromContext). It is
// handled like any other, unless forwarder.SubscriberConfig.Relay says that handlers pass such messages on to a broker:
// then Outbox lets through what they return, and Inbox does not note the message if its handler publishes, because the
// publishing may fail and must be repeated. Where Relay was forgotten a handler fails with ErrRelayed, instead of
// feeding itself for ever. What a middleware outside of these hands on must be the Subscriber's message and not a copy.
//
// # Behind the durable queue
//
// A message of queue.Subscriber is a row of the queue that the subscription has claimed. Inbox marks that row done as
// the first statement of the transaction, so the Router's ack costs nothing and no copy can be handled meanwhile. An
// error rolls that back, and the nack puts the message off. What a middleware outside of these hands on must be the
// Subscriber's message and not a copy, or it is noted in the inbox like any other.
//
// # Within the process
//
// An in-process Pub/Sub that preserves contexts brings the handler's context along with what it publishes. The handler
// of that message gets a transaction and an inbox note of its own all the same. To publish to its own topic a handler
// must use outbox.OutsideTx.
//
// # Sending a message again
//
// To retry a message later, a handler may return it, or publish it, to its own topic with a delay. It needs a new UUID
// (message.NewMessage), because Inbox skips one that it knows. Copied metadata have the
// ordering key as well, and the delay, which is over by then and delays nothing.
//
// Watermill's own way works too: PoisonQueue with an outbox.Publisher (OwnTx) around DelayOnError around the Stack puts
// a message that fails into the outbox, delayed, and Watermill's requeuer behind a forwarder.Subscriber sends it back
// to its topic, under the UUID that it had. Inbox lets it in, since it was not handled.
package middleware
