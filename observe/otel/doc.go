// Package otel exports traces and metrics of an outbox and an inbox to OpenTelemetry. A trace continues from the writer
// of a message through the outbox and the broker to its handler.
//
//	seen, err := otel.NewObserver(otel.ObserverConfig{System: "nats"})
//	db, err := outbox.FromPgx(pool, outbox.DBConfig{Observers: []observe.Observer{seen}}, logger)
//
// # Traces
//
// Names follow the semantic conventions for messaging, version 1.43. Each message has these spans:
//
//	span             kind      covers                     parent
//	create <topic>   producer  the write to the outbox    the span in the writer's context
//	send <topic>     client    an attempt of the          create, for the first attempt, also after a
//	                           forwarder                  requeue; later attempts begin traces of their
//	                                                      own, linked to create
//	process <topic>  consumer  the call of a handler      the span in the message's context, or create
//
// The span context of create is stored in the message's metadata, usually as traceparent, and arrives with the message
// whichever attempt delivers it. The gap between create and send is the time spent in the outbox. Later attempts have
// traces of their own because the first trace may have ended long before.
//
// If a forwarder.Subscriber or an in-memory Pub/Sub delivers the message, process is a child of that delivery's span,
// and is linked to create. The create spans of messages that a handler publishes are children of its process span.
//
// The broker must carry metadata as headers. Watermill's marshalers for Kafka and NATS do, except the JSON and Gob
// marshalers for NATS. A publisher with its own tracing replaces the span context in the message.
//
// # Metrics
//
// Instruments follow the conventions too: messaging.client.sent.messages, messaging.client.operation.duration (for
// create and send), messaging.client.consumed.messages and messaging.process.duration. This package adds
// outbox.message.lag, the time from insert to publish on the database's clock, without messages delayed on purpose, and
// outbox.dead.messages. For pending messages use observe/prom.
//
// Spans contain no payloads. The status of a failed span has the text of its error.
package otel
