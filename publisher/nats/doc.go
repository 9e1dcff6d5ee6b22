// Package nats sets up a watermill-nats publisher for JetStream so that it is safe behind an outbox, and
// tells the forwarder what its errors mean.
//
// An outbox promises that nothing is lost; what it sends again after a crash carries the same UUID. JetStream
// can keep both sides of that: it acknowledges a message only when it is stored, and drops one whose
// Nats-Msg-Id it has seen within the stream's Duplicates window. [NewPublisher] differs from the defaults
// of watermill-nats and nats.go in these points:
//
//   - Nats-Msg-Id is UUID and topic, and the generation if the message was requeued or replayed (metadata
//     "outbox_generation"), or how often Watermill's requeuer has sent it. JetStream keeps one window per stream, not per subject: with the UUID alone, which is
//     what watermill-nats's TrackMsgId sets, the second of two subjects of one stream would lose its message while
//     the publisher reports success. Without the generation a replay would be swallowed the same way. A
//     Nats-Msg-Id in the message's metadata is used as it is. See [Marshaler].
//   - Messages are made by watermill-nats's NATSMarshaler, which carries UUID and metadata as headers. Its Gob
//     and JSON marshalers work too: Nats-Msg-Id is added to their messages.
//   - The client reconnects for ever (MaxReconnects -1, IgnoreAuthErrorAbort), starts before the server does
//     (RetryOnFailedConnect), and notices a dead connection within a minute (PingInterval 20 s) instead of up to six.
//   - Nothing is buffered while disconnected (ReconnectBufSize -1): Publish fails at once instead of waiting for the
//     acknowledgement of a message that is still in memory and would arrive after its own retry.
//   - The acknowledgement is waited for at most 5 s (AckTimeout), because Publish takes no context.
//   - AutoProvision is off: it asks for the stream in every call, one more round trip, and creates one with the
//     topic's name, which may contain no dot. Create streams yourself, see below.
//
// # The stream
//
// Use file storage, three replicas in production, and a Duplicates window longer than a message may take from
// its first to its last try. The server's default is two minutes.
//
//	js.AddStream(&nats.StreamConfig{
//		Name:       "ORDERS",
//		Subjects:   []string{"orders.>"},
//		Storage:    nats.FileStorage,
//		Replicas:   3,
//		Discard:    nats.DiscardNew, // full: refuse new messages, do not drop old ones
//		Duplicates: 10 * time.Minute,
//	})
//
// # Metadata
//
// NATS headers are text: nats.go replaces line breaks in metadata values by spaces and trims them. A metadata
// key with a character that a header name cannot have is refused, and so is "_watermill_message_uuid", the header in which
// the UUID travels. Payloads are not touched.
//
// # Verdicts
//
// A forwarder asks the [Publisher] for the verdict on each of its errors, which is that of [Classify]. It blames a message only for what is certainly the message's own fault, and
// pauses a topic only for what certainly is not; all else is Retry: charged as an attempt and tried again.
//
//   - Unavailable: no connection, no acknowledgement in time, no stream for the subject, JetStream disabled, without
//     leader or resources, a full or sealed stream, a closed publisher; failed authentication too: no message is at fault,
//     and once the operator has fixed it the topic goes on by itself. A missing permission to publish shows only as a time-out;
//     the server reports the reason asynchronously, and NewPublisher logs it.
//   - Permanent: payload and headers over the server's max_payload or the stream's MaxMsgSize, headers over 64 KiB, a
//     subject or header name that NATS does not allow, an invalid per-message TTL, outbox.ErrInvalidMessage.
//   - Retry: everything else, such as a failed expectation on the last sequence.
//
// # What JetStream lost
//
// A server syncs to disk every two minutes unless its sync_interval says otherwise, so with one replica a power cut loses what
// it acknowledged since. [TopicReader] tells admin.Reconcile what the streams still hold, so that the outbox sends the rest again
// under another generation, and admin.Doctor which streams are at risk.
//
// Sources: the comments on nats.Options, "Message Deduplication" in the NATS documentation on
// JetStream, ADR-4 (headers), and nats-server's list of JetStream error codes.
package nats
