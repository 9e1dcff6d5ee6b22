// Package nats sets up a watermill-nats publisher for JetStream so that it is safe behind an outbox, and
// tells the forwarder what its errors mean.
//
// An outbox promises that nothing is lost; what it sends again after a crash carries the same UUID. JetStream
// can keep both sides of that: it acknowledges a message only when it is stored, and drops one whose
// Nats-Msg-Id it has seen within the stream's Duplicates window. [NewPublisher] differs from the defaults
// of watermill-nats and nats.go in these points:
//
//   - Nats-Msg-Id is UUID and topic, and the generation if the message was requeued or replayed (metadata
//     "outbox_generation"), or how often Watermill's requeuer has sent it. JetStream keeps one window per stream, not
//     per subject: with the UUID alone, which is what watermill-nats's TrackMsgId sets, the second of two subjects of
//     one stream would lose its message while the publisher reports success. Without the generation a replay would be
//     swallowed the same way, so it is added to a Nats-Msg-Id of your own as well. See [Marshaler] and [SetHeader].
//   - Metadata command nothing: see below.
//   - Messages are made by watermill-nats's NATSMarshaler, which carries UUID and metadata as headers. Its Gob
//     and JSON marshalers work too: Nats-Msg-Id is added to their messages.
//   - The client reconnects for ever (MaxReconnects -1, IgnoreAuthErrorAbort), starts before the server does
//     (RetryOnFailedConnect), and notices a dead connection within a minute (PingInterval 20 s) instead of up to six.
//   - It leaves a server of a cluster that acknowledges nothing for two AckTimeouts: one that is cut off from the
//     others answers pings, so that the client itself would stay with it, and one that is frozen is noticed within that
//     minute.
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
// Metadata travel as headers, which are lines of text: nats.go replaces line breaks in their values by spaces, and
// trims spaces at both ends. Payloads are not touched.
//
// JetStream obeys headers: Nats-Rollup deletes what a stream holds, Nats-TTL and Nats-Expected-Stream decide whether a
// message stays or comes in, and with the Nats-Msg-Id of another message it is dropped as a copy and reported as
// stored. A service that copies the metadata of what it consumed would pass on such commands of its sender. So
// metadata are data: a key that begins with "Nats-", in whatever case, is sent under the name "%" and the key, as are
// KV-Operation and, in a message without a payload, Status, which clients obey. A command is what the application sets
// with [SetHeader] on a message of its own, what a Marshaler of yours sets, or JetStream.PublishOptions of the
// [PublisherConfig]. Consumers get no trace of SetHeader but the header that the server has stored, and the middlewares
// take it off what came from elsewhere.
//
// Keys that no header can have are sent under "%" and the key encoded as in the query of a URL: "customer name" as
// "%customer+name". These are the empty key, keys with a character that is not ASCII, with a space, a control
// character, a double quote or one of ()/,:;<=>?@[\]{}, keys that begin with "%", and "_watermill_message_uuid", the
// header in which the UUID travels. [Unmarshaler], around that of a consumer, gives all of them their names again;
// without it a consumer finds the encoded names, and nothing is lost.
//
// # Consuming
//
// [Subscriber] reads JetStream by key, from a durable pull consumer that it creates. The subscriber of
// watermill-nats's package nats pushes; give it the Unmarshaler of this package, and create its durable consumer
// yourself: one that it made is deleted when it unsubscribes, and with it the position.
//
// # Verdicts
//
// Each error of the [Publisher] carries the verdict of [Classify] to the forwarder, as a forwarder.PublishError. It
// blames a message only for what is certainly the message's own fault, and pauses a topic only for what certainly is
// not; all else is Unknown, and what becomes of other messages decides.
//
//   - Unavailable: no connection, no acknowledgement in time, no stream for the subject, JetStream disabled, without
//     leader or resources, a full or sealed stream, a closed publisher; failed authentication too: no message is at
//     fault, and once the operator has fixed it the topic goes on by itself. A missing permission to publish shows only
//     as a time-out; the server reports the reason asynchronously, and NewPublisher logs it.
//   - Permanent: payload and headers over the server's max_payload or the stream's MaxMsgSize, headers over 64 KiB, a
//     subject or header name that NATS does not allow, an invalid per-message TTL, outbox.ErrInvalidMessage.
//   - Retry: an expectation of the message's own that is not met, on the last sequence or message, or, by SetHeader, on
//     the stream. If the publisher expects a stream of all of its messages, another one is Unavailable.
//   - Unknown: everything else.
//
// # What JetStream lost
//
// A server syncs to disk every two minutes unless its sync_interval says otherwise, so with one replica a power cut
// loses what it acknowledged since. [TopicReader] tells admin.Reconcile what the streams still hold, so that the outbox
// sends the rest again under another generation, and admin.Doctor which streams are at risk.
//
// Sources: the comments on nats.Options, "Message Deduplication" in the NATS documentation on
// JetStream, ADR-4 (headers), and nats-server's list of JetStream error codes.
package nats
