// Package nats publishes an outbox to NATS JetStream, and reads JetStream by key, for Watermill.
//
//	pub, err := nats.NewPublisher(nats.PublisherConfig{URL: url}, logger)
//	sub, err := nats.NewSubscriber(nats.SubscriberConfig{URL: url, Consumer: "booking"}, logger)
//
// [TopicReader] reads the contents of streams, for packages admin and outboxctl.
//
// # Publisher
//
// A message is reported as sent when JetStream has stored it. Nats-Msg-Id consists of UUID, topic and generation, so
// JetStream drops a copy within the stream's Duplicates window and accepts a replay. The client reconnects forever and
// buffers nothing while disconnected; it waits for an acknowledgement at most AckTimeout, 5 s by default.
//
// Create streams yourself: file storage, three replicas in production, DiscardNew, and a Duplicates window longer than
// the time from a message's first to its last attempt. The server's default is two minutes.
//
// Metadata are data and never commands to the server: a key that begins with "Nats-" is sent with the prefix "%". Keys
// that cannot be header names are encoded, and [Unmarshaler] restores them. Header values lose line breaks and outer
// spaces. Use [SetHeader] for your own commands.
//
// Each error carries the verdict of [Classify]: Unavailable pauses the topic, Permanent makes the message dead, Retry
// counts an attempt, Unknown leaves the decision to the forwarder's circuit breaker.
//
// # Subscriber
//
// [Subscriber] creates a durable pull consumer. Messages with the same key are handled one after another; a failing
// message blocks only its key. Delivery is at least once; with middleware.Inbox each message is handled once.
//
// docs/start/nats.md has the settings, the rules for headers and the verdicts.
package nats
