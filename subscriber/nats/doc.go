// Package nats reads JetStream by key, as a message.Subscriber for Watermill's Router: a message that keeps failing
// blocks its key and nothing else, and messages of different keys are handled at once.
//
//	sub, err := nats.NewSubscriber(nats.SubscriberConfig{URL: url, Consumer: "booking-orders"}, logger)
//
// Put the middlewares of package middleware around the handlers: messages are delivered at least once, and
// middleware.Inbox makes that once. docs/guides/inbound-nats.md is the guide. It behaves as package subscriber/kafka
// does; what follows is what JetStream adds. It needs nats-server 2.11 or later.
//
// # The consumer
//
// A topic is a subject, with wildcards if you like, of a stream that is there. The Subscriber creates a durable pull
// consumer for it, named by SubscriberConfig.Consumer and the topic, and never deletes it. A consumer of that name that
// was made otherwise is refused.
//
// # One owner
//
// Two processes that pull from one consumer at once have no order. So the consumer pins one of them, its owner
// (PriorityPolicy pinned_client), and the others are on standby. The owner pulls at least once a second. If it does not
// for 4/3 of AckWait, because it died or hangs, JetStream gives the messages to another process. At the end of a
// subscription a standby takes over at once. To have more than one process at work give each a part of the subjects.
//
// # Order
//
// Messages of the same key are delivered one after another, in the order of the stream: the next one when the one
// before was acked. A message that is nacked blocks its key for Backoff and is then delivered again from memory.
// JetStream is never sent a nack for it, as it would deliver later messages meanwhile. For all that is in memory it is
// told, each third of AckWait, that this is still at work.
//
// A new owner delivers nothing before it holds every message that JetStream still waits for: what the owner before had
// in hand is redelivered after AckWait, and new messages may be delivered earlier. It is the same when the count of
// deliveries has a gap, as after a lost connection.
//
// # Acks, crashes and the end
//
// Each message is acked by itself. After a crash what was not acked is delivered again, at most MaxAhead messages. Acks
// that JetStream never got, because the connection was lost, mean that a message is delivered again after later ones of
// its key: middleware.Inbox skips it. At the end of a subscription the contexts of all messages end, handlers have
// CloseTimeout, acks are confirmed, and what was not with a handler is handed back at once.
//
// An owner that was frozen sends no ack and starts nothing until JetStream has confirmed that it still is the owner. A
// handler that was at work then goes on beside the new owner's: with middleware.Inbox the second waits for the
// transaction of the first and skips. Without an inbox such a message is handled twice.
package nats
