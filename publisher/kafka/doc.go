// Package kafka sets up a watermill-kafka publisher so that it is safe behind an outbox, and tells the
// forwarder what its errors mean.
//
// An outbox promises that nothing is lost and that messages of one key keep their order. Both end at the
// broker's acknowledgement: what the publisher reports as sent is marked published and never sent again.
// So the publisher must not report success too early, must not put two messages of a key into different
// partitions, and must not let one bad message fail its neighbours. The defaults of watermill-kafka and
// sarama serve other needs. [NewPublisher] differs from them in these points:
//
//   - Producer.RequiredAcks is WaitForAll. sarama's default, WaitForLocal, acknowledges what only the leader
//     has; if that broker dies, the message is gone and the outbox believes it was delivered. How many
//     replicas "all" means at least is the topic's min.insync.replicas: set it to 2 with three replicas.
//   - Producer.Idempotent is on, with one open request per broker (Net.MaxOpenRequests), which is sarama's condition
//     for it: the broker recognises a batch that sarama sends a second time, so that its retries write nothing twice.
//     It needs sarama 1.61 or newer; older ones acknowledged messages that the broker never stored, after a refused
//     batch and after a restart. A broker before 2.8 wants the ACL IDEMPOTENT_WRITE on the cluster. Where that cannot
//     be had, switch it off: nothing is lost without it, and a copy carries the same UUID as any other that the outbox
//     sends twice.
//   - The Kafka key is the outbox key (metadata "outbox_key", see [outbox.MetadataKey]), so that a key is one partition
//     and consumers see its order. Without a key it stays nil: sarama hashes an empty, non-nil key, which would send
//     all unkeyed traffic to one partition. See [Marshaler]. Partitions that are added to a live topic move keys: later
//     messages of a key may be consumed before earlier ones, which wait in its old partition. Let the consumers drain
//     the topic first, with the topic paused (outboxctl topics pause), or have more partitions than you need from the
//     start.
//   - Retries and timeouts are bounded, because Publish takes no context: one retry, after 250 ms; 3 s to connect; 5 s
//     for the replicas (Producer.Timeout) and 6 s for the response (Net.ReadTimeout, longer, so that it is the broker
//     who gives up first and says so); one retry after 1 s for metadata. A broker that is down fails a call in a few
//     seconds, one that accepts and never answers in about half a minute. More patience is the forwarder's business: it
//     pauses the topic without charging anyone.
//   - Producer.Return.Successes and Errors are on, as every synchronous sarama producer needs them.
//   - It connects in the background. sarama's constructors fail while Kafka is down, and a service that needs them
//     would not start. Here Publish fails until Kafka is there, which the outbox is made for.
//
// Metadata travel as headers. "_watermill_message_uuid", the header in which the UUID travels, and keys that begin with
// "%" are sent under "%" and the key encoded as in the query of a URL, and [Unmarshaler], around that of a consumer,
// gives them their names again. No header commands Kafka: what was set with nats.SetHeader is left out.
//
// Change anything else in [PublisherConfig].Configure. A change that breaks one of the promises above is
// refused by the constructor with an error that names the field.
//
// # A batch that is refused
//
// sarama puts messages of concurrent calls into one batch per partition. If the broker finds the batch too large
// or one of its records invalid, the whole batch is refused and every message in it gets the same error, the
// innocent ones too. [Publisher] sends each of them once more, alone: the innocent arrive, and the
// guilty one is told apart by [ErrRefused]. Put [Wrap] around a publisher that you built yourself to have the same.
//
// # Verdicts
//
// Each error of the [Publisher] carries the verdict of [Classify] to the forwarder, as a forwarder.PublishError. It
// blames a message only for what is certainly the message's own fault, and pauses a topic only for what certainly is
// not; all else is Unknown, and what becomes of other messages decides.
//
//   - Unavailable: no connection, no leader, too few replicas in sync, time-outs, sarama's own circuit breaker (after
//     three failures it refuses a topic or a partition for 10 s, which cannot be changed: a topic works again up to
//     10 s after its broker), a topic that does not exist, a closed publisher. Failed authentication and authorization
//     too: no message is at fault, nothing is lost while the topic waits, and once the operator has fixed the ACL or
//     the password it goes on by itself. Lost producer state as well (unknown producer id, sequence out of order):
//     sarama starts a new epoch and the next try succeeds.
//   - Permanent: a message over Producer.MaxMessageBytes, a topic name that Kafka does not allow, ErrRefused,
//     outbox.ErrInvalidMessage.
//   - Unknown: everything else, a refused batch from a publisher without Wrap included: it is unknown
//     which of its messages the broker meant.
//
// # Partitions
//
// The key chooses among the partitions that there are. If partitions are added to a topic that is in use, keys move: a
// later message of a key may be in another partition than an earlier one, and be consumed before it. Give a topic
// enough partitions when it is made, or stop what writes to it, let the consumers read to the end, and then add some.
//
// # What Kafka lost
//
// Kafka acknowledges what its replicas have in memory. If they lose it, or the log is truncated, [TopicReader] tells
// admin.Reconcile what is left, so that the outbox sends the rest again, and admin.Doctor which topics are at risk:
// those with one replica, with min.insync.replicas below 2, or with unclean leader elections.
//
// Sources: the comments on sarama.Config, the producer configuration in Kafka's documentation
// (acks, enable.idempotence, min.insync.replicas) and Kafka's list of protocol error codes.
package kafka
