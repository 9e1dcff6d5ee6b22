// Package amqp publishes to RabbitMQ what watermill-amqp's subscriber reads, and reports a message as published only
// when a queue has it.
//
// It takes the config of watermill-amqp, and differs from its publisher in what an outbox needs:
//
//   - Publisher confirms are always on. Without them, watermill-amqp returns nil when the message is in a buffer of this
//     process.
//   - Messages are mandatory: one that no queue is bound for is returned by the broker and stays in the outbox. The
//     broker acknowledges it as well, so that watermill-amqp loses it even with confirms. AllowUnroutable turns this off.
//   - Messages are persistent.
//   - The connection is made by the first Publish, and again by the next one after it was lost. A broker that does not
//     answer is given up after AckTimeout.
//   - All calls share one channel per topic, so that the broker confirms many messages at once.
//   - The message id is the UUID, unless the marshaler sets one: the broker does not drop copies, consumers have to.
//   - Metadata do not command the broker: see [Marshaler].
//
// Queues must be durable, and quorum queues or streams where one server may be lost.
//
// # Verdicts
//
//   - Unavailable: no connection, no confirm in time, a negative confirm (a full queue with reject-publish), no queue
//     for the message, no exchange, no permission, resource alarms.
//   - Permanent: a routing key or a metadata key over 255 bytes, headers that fit no frame, outbox.ErrInvalidMessage.
//   - Unknown: everything else, such as a message over max_message_size. That closes the channel of the topic, and the
//     others that were in flight fail with it; the forwarder finds out which one it was.
package amqp
