// Package kafka reads Kafka by key, as a message.Subscriber for Watermill's Router: a message that keeps failing blocks
// its key and nothing else, and the messages of a partition are handled by many handlers at once.
//
// To move from watermill-kafka's subscriber, put its config into this one; handlers stay as they are:
//
//	sub, err := kafka.NewSubscriber(kafka.SubscriberConfig{SubscriberConfig: cfg}, logger)
//
// Put the middlewares of package middleware around the handlers: messages are delivered at least once, and
// middleware.Inbox makes that once. docs/guides/inbound-kafka.md compares the two subscribers.
//
// # Order
//
// Messages of a partition with the same key are delivered one after another: the next one when the one before was
// acked. The key is that of the Kafka message, or what SubscriberConfig.Key returns. It must have decided the partition
// when the message was produced. No order is kept for a topic whose producers do not choose the partition by key, nor
// across a change of the number of partitions. Messages without a key are delivered in any order.
//
// A message that is acked before its handler is done, by middleware.InstantAck for one, lets the next of its key go.
// Watermill's Retry keeps the place of a message while it waits: leave retries to SubscriberConfig.Backoff.
//
// # Failures
//
// A message that is nacked blocks its key for Backoff, and then it is delivered again, made anew from what Kafka has.
// Others have its place meanwhile, and messages that failed before have at most half of all places, so that failing
// keys never stop the others. middleware.Outcomes does not wait before it nacks such a message; if the handler returned
// outbox.RetryAfter, its wait is kept. A message that Unmarshaler refuses, or for which Key panics, counts as failed:
// it blocks its key, an error line names its offset, and it is retried until the program is fixed. A message that no
// retry can help must be acked: middleware.Outcomes does so with a dead letter.
//
// # Offsets
//
// What is committed is the offset of the oldest message that is not done. A key that fails for long holds it, and so
// after a crash or a rebalance up to MaxAhead messages of the partition are delivered again, each key from its own
// oldest on. middleware.Inbox skips those that were handled. MaxAhead and MaxBytes bound what is read beyond that
// message: then the partition pauses, which observers and an error line a minute tell, until the message is handled or
// dead.
//
// # Parking
//
// With SubscriberConfig.Park a key that fails for long is parked, so that the offset moves on. To handle a message of a
// parked key is then to store it in tables of its own in Postgres, and to commit its offset. From there it is delivered
// to the same handler, in the order of its key, with the Backoff of all messages, and not before the time that its
// handler asked for by outbox.RetryAfter. Only the middlewares decide that it is dead. When nothing of the key is left
// there, the key is read from Kafka again; while its messages are being handled, the next one waits in memory for that.
// What is stored is the Kafka record: the Unmarshaler is called at delivery, and the message has the same identity,
// metadata and context. Messages without a key, and those that cannot be unmarshalled, are parked like others; those
// for which Key panics are not.
//
// A message whose handler has asked for a later retry is parked as well, because it holds the offset as long, and its
// row waits for what is left of that time. A key drains, with its next message in memory, when a handler has done
// something of it lately and at most 1,000 rows are left: by turns of ten times After, and not while the partition has
// been paused for After. So a key leaves when its handler is faster than its producer, and its rows grow while it is
// not.
//
// Parking needs middleware.Inbox: a message may be in Kafka and in the table at once, and the inbox makes that once.
// The order is kept because no owner hands out or stores a message before the one before it of its key is done or
// stored:
//
//   - Which keys are parked is read when a partition is claimed, before its first message is handed out. Offsets were
//     committed after their messages were stored, so whatever the new owner does not get from Kafka it finds there.
//   - Killed before a message is stored: Kafka delivers it again.
//   - Killed after it was stored, and before its offset is committed: the new owner finds its key parked and stores it
//     again, behind itself. The inbox skips the second one. So it is if it is unknown what became of a COMMIT.
//   - Killed after the offset was committed: the row is delivered by whichever process of the group looks first.
//   - Killed before a key leaves: the next owner finds no row of the key, and all of it that was stored is done.
//   - A key leaves only after a look at the table that found nothing of it, began while nothing of it was being stored,
//     and after which nothing of it was.
//   - A frozen process stores what another one has handled, or is about to. Its rows follow one another as well, so
//     both walk the key in order, and meet in the inbox. Each process looks at the table once a minute, so that no such
//     row is left there for longer than the inbox remembers.
//
// Before a release that turns Park off, or changes Key or ConsumerGroup, wait until outbox_parked is empty: a process
// that does not know of it would overtake what is parked. For the same reason turn it on in two releases if old and new
// processes run side by side: in the first with After so long (24 h) that nothing is parked, but what is parked is
// found.
//
// # Rebalances, crashes and the end
//
// When a partition is taken away, nothing more of it is delivered, and what is with handlers has RevokeTimeout to be
// acked; its acks are committed before the partition is given away. At the end of the subscription the contexts of all
// messages end, handlers have CloseTimeout, and every ack is committed. All strategies of sarama
// (Consumer.Group.Rebalance.GroupStrategies) work, cooperative ones too.
//
// A frozen process, or a handler that was given up, may still be at work while another process handles the same
// message. With middleware.Inbox both note the message under the same consumer and id, the second waits for the first
// one's transaction and skips, and neither begins the next message of the key before this one is committed. Without an
// inbox such a message is handled twice.
//
// If the host of a process vanishes, Postgres keeps the row locks of its transactions until it notices: set
// tcp_keepalives_idle, tcp_keepalives_interval and idle_in_transaction_session_timeout, or its keys wait that long.
package kafka
