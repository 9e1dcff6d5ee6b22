// Package kafka publishes to Kafka what an outbox holds, and reads Kafka by key, for Watermill.
//
//	pub, err := kafka.NewPublisher(kafka.PublisherConfig{Brokers: brokers}, logger)
//	sub, err := kafka.NewSubscriber(kafka.SubscriberConfig{SubscriberConfig: cfg}, logger) // cfg is watermill-kafka's
//
// [TopicReader] reads what a cluster holds, for packages admin and outboxctl.
//
// # Publisher
//
// An outbox promises that nothing is lost and that messages of a key keep their order. What the publisher reports as
// sent is never sent again, so it must not report success too early, must not put messages of a key into different
// partitions, and must not let one bad message fail its neighbours. [NewPublisher] differs from watermill-kafka and
// sarama in these points:
//
//   - Producer.RequiredAcks is WaitForAll: sarama's default acknowledges what only the leader has. How many replicas
//     "all" means at least is the topic's min.insync.replicas: set it to 2 with three replicas.
//   - Producer.Idempotent is on, with one open request per broker, so that sarama's retries write nothing twice. It
//     needs sarama 1.61 or newer. A broker before 2.8 wants the ACL IDEMPOTENT_WRITE on the cluster; without it, switch
//     it off: nothing is lost, and a copy has the same UUID as any other that the outbox sends twice.
//   - The record key is the ordering key of the message, and nil without one: sarama would send all records with an
//     empty key to one partition. See [Marshaler].
//   - Retries and timeouts are bounded, because Publish takes no context. A broker that is down fails a call in a few
//     seconds, one that accepts and never answers in about half a minute. The forwarder is the one to be patient.
//   - It connects in the background, so that a service starts while Kafka is down.
//   - If the broker refuses a batch, each of its messages is sent once more, alone: only the guilty one fails, with
//     [ErrRefused]. [Wrap] does the same for a publisher that you built yourself.
//
// Change anything else in [PublisherConfig].Configure. A change that breaks a promise above is refused by the
// constructor with an error that names the field.
//
// Metadata travel as headers. Keys that begin with "%", and "_watermill_message_uuid", the header of the UUID, are sent
// under "%" and the key encoded as in the query of a URL; [Unmarshaler], around that of a consumer, restores them.
//
// The key chooses among the partitions that exist. Partitions that are added to a live topic move keys: a later message
// of a key may be consumed before an earlier one. Let the consumers drain the topic first, with the topic paused
// (outboxctl topics pause).
//
// # Verdicts
//
// Each error of the [Publisher] carries the verdict of [Classify] to the forwarder, as a forwarder.PublishError. It
// blames a message only for what is certainly the message's own fault, and pauses a topic only for what certainly is
// not; everything else is Unknown, and the results of other messages decide.
//
//   - Unavailable: no connection, no leader, too few replicas in sync, time-outs, sarama's own circuit breaker (after
//     three failures it refuses a topic or a partition for 10 s, which cannot be changed), a topic that does not exist,
//     a closed publisher, failed authentication and authorization, lost producer state.
//   - Permanent: a message over Producer.MaxMessageBytes, a topic name that Kafka does not allow, ErrRefused,
//     outbox.ErrInvalidMessage.
//   - Unknown: everything else, a refused batch from a publisher without Wrap included.
//
// # Subscriber
//
// A message that keeps failing blocks its key and nothing else, and the messages of a partition are handled by many
// handlers at once. Put the middlewares of package middleware around the handlers: messages are delivered at least
// once, and middleware.Inbox makes that once. docs/guides/inbound-kafka.md compares it with watermill-kafka's.
//
// Order: messages of a partition with the same key (of the record, or SubscriberConfig.Key) are delivered one after
// another, the next when the one before was acked. The key must have decided the partition when the message was
// produced. A message that is acked before its handler is done, as by Watermill's InstantAck, lets the next of its key
// go. Watermill's Retry keeps the slot of a message while it waits: leave retries to SubscriberConfig.Backoff.
//
// Failures: a message that is nacked blocks its key for Backoff, and is delivered again, unmarshalled again from the
// record. Messages that failed before have at most half of the slots, so that failing keys never stop the others. A
// message that no retry can help must be acked: middleware.Outcomes does so with a dead letter.
//
// Offsets: the committed offset is that of the oldest message that is not done. After a crash or a rebalance up to
// MaxAhead messages of the partition are delivered again, each key from its own oldest on. Beyond MaxAhead or MaxBytes
// the partition pauses, which observers and an error line a minute report, until the message is handled or dead.
//
// Rebalances and the end: when a partition is taken away, handlers have RevokeTimeout to ack; at the end of the
// subscription the contexts of all messages end, and handlers have CloseTimeout. Acks until then are committed. A
// frozen process, or a handler that was given up, may still be at work while another process handles the same message:
// middleware.Inbox makes one wait for the other's transaction and skip. If a host vanishes, Postgres keeps the row locks
// of its transactions until it notices: set tcp_keepalives_idle, tcp_keepalives_interval and
// idle_in_transaction_session_timeout.
package kafka
