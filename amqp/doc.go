// Package amqp publishes to RabbitMQ, for consumers with watermill-amqp's subscriber, and reports a message as
// published only when a queue has it.
//
//	pub, err := amqp.NewPublisher(amqp.PublisherConfig{Config: cfg}, logger) // cfg is watermill-amqp's
//
// It differs from watermill-amqp's publisher:
//
//   - Publisher confirms are always on. Without them, watermill-amqp returns nil once the message is in a buffer of
//     this process.
//   - Messages are mandatory: the broker returns a message that it can route to no queue, and the message stays in the
//     outbox. watermill-amqp loses such a message even with confirms. AllowUnroutable turns this off.
//   - Messages are persistent.
//   - The first Publish connects, and after a lost connection the next one reconnects. Publish waits for the broker at
//     most AckTimeout.
//   - All calls share one channel per topic, so that the broker confirms many messages together. With more topics than
//     the broker's channel_max, a new channel closes an idle one.
//   - The message id is the UUID, unless the marshaler sets one. The broker does not drop duplicates; consumers must.
//   - Metadata cannot command the broker: see [Marshaler].
//
// Declare durable queues; if a server may be lost permanently, quorum queues or streams.
//
// # Verdicts
//
//   - Unavailable: no connection, a connection that the broker closed, no confirm in time, a negative confirm (a full
//     queue with reject-publish), no queue for the message, no exchange, no permission, resource alarms.
//   - Permanent: a message over max_message_size, or refused with code 406 for another reason. RabbitMQ then closes the
//     topic's channel, so Publish sends each message in flight again on a channel of its own; only the refused one
//     fails. Also a routing key, exchange name, metadata key or property such as the content type over 255 bytes,
//     headers larger than a frame, outbox.ErrInvalidMessage.
//   - Unknown: everything else, such as an error of your marshaler.
package amqp
