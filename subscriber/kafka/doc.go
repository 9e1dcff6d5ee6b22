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
