// Package kafka publishes an outbox to Kafka, and reads Kafka by key, for Watermill.
//
//	pub, err := kafka.NewPublisher(kafka.PublisherConfig{Brokers: brokers}, logger)
//	sub, err := kafka.NewSubscriber(kafka.SubscriberConfig{SubscriberConfig: cfg}, logger) // cfg is watermill-kafka's
//
// [TopicReader] reads the contents of a cluster, for packages admin and outboxctl.
//
// # Publisher
//
// A message is reported as sent when all in-sync replicas have it: set min.insync.replicas to 2 with three replicas.
// The producer is idempotent. The record key is the ordering key, so messages of a key go to one partition; partitions
// added to a live topic move keys. If the broker refuses a batch, only the guilty message fails. Publish returns within
// half a minute. For the errors of your own publisher, use forwarder.WithVerdicts and [Classify].
//
// Change other settings in [PublisherConfig].Configure. The constructor refuses changes that break these promises.
//
// Each error carries the verdict of [Classify]: Unavailable pauses the topic, Permanent makes the message dead, Unknown
// leaves the decision to the forwarder's circuit breaker.
//
// # Subscriber
//
// Messages of a partition are handled concurrently; messages with the same key are delivered one after another, each
// after the previous ack. A failing message blocks only its key, and is delivered again after SubscriberConfig.Backoff.
// Delivery is at least once; with middleware.Inbox each message is handled once.
//
// The committed offset is the offset of the oldest unfinished message. After a crash or a rebalance up to MaxAhead
// messages of a partition are delivered again. Leave retries to Backoff: Watermill's Retry keeps a slot while it waits.
// A message that can never succeed must be acked: middleware.ErrorHandler acks it and publishes a dead letter.
//
// docs/start/kafka.md has the settings and verdicts; docs/guides/inbound.md compares the subscriber with
// watermill-kafka's.
package kafka
