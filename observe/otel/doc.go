// Package otel exports traces and metrics of an outbox and an inbox to OpenTelemetry. Traces continue through the
// outbox, the broker and the handler.
//
//	seen, err := otel.NewObserver(otel.ObserverConfig{System: "nats"})
//	db, err := outbox.FromPgx(pool, outbox.DBConfig{Observers: []observe.Observer{seen}}, logger)
//
// # Traces
//
// Names follow the semantic conventions for messaging, version 1.43. Each message has these spans:
//
//	span             kind      when                          its parent
//	create <topic>   producer  it is written to the outbox   its writer: a request, or the handler of another message
//	send <topic>     client    the forwarder publishes       create, for the first attempt; a later one begins
//	                           or delivers it                its own trace, linked to create
//	process <topic>  consumer  a handler gets it             the span of its context, or create
//
// The span context of create, usually traceparent, is stored in the message's metadata. It arrives with the message,
// whichever attempt delivers it. The gap between create and send is the time in the outbox. Later attempts have their
// own traces because the first trace may have ended long before.
//
// A message delivered within a process, by a forwarder.Subscriber or an in-memory Pub/Sub, is processed in the span of
// that delivery, and linked to create. Messages that a handler returns or publishes with its context belong to its
// process span.
//
// Brokers must carry metadata as headers, as the marshalers for Kafka and NATS do, except for the JSON and Gob
// marshalers for NATS. A publisher with its own tracing puts the context of its own span, below send, into the message.
//
// # Metrics
//
// Instruments follow the conventions too: messaging.client.sent.messages, messaging.client.operation.duration (for
// create and send), messaging.client.consumed.messages and messaging.process.duration. There are also
// outbox.message.lag, the time from insert to publish on the database's clock, without messages delayed on purpose, and
// outbox.dead.messages. observe/prom counts pending messages.
//
// Spans contain no payloads; the text of an error is the status of its span.
package otel
