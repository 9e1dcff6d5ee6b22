// Package otel exports traces and metrics of an outbox and an inbox to OpenTelemetry. Traces continue through the
// outbox, the broker and the handler.
//
//	seen, err := otel.NewObserver(otel.ObserverConfig{System: "nats"})
//	db, err := outbox.FromPgx(pool, outbox.DBConfig{Observers: []observe.Observer{seen}}, logger)
//
// # Traces
//
// Names and attributes follow the semantic conventions for messaging, version 1.43. Each message has these spans:
//
//	span             kind      when                          its parent
//	create <topic>   producer  it is written to the outbox   its writer: a request, or the handler of another message
//	send <topic>     client    the forwarder publishes       create, for the first attempt; a later one begins
//	                           or delivers it                its own trace, linked to create
//	process <topic>  consumer  a handler gets it             the span of its context, or create
//
// The span context of create, usually traceparent, is stored in the message's metadata. It survives crashes of the
// forwarder and arrives with the message, whichever attempt delivers it, so a copy of a message is processed in the
// same trace. The gap between create and send is the time in the outbox. Later attempts and the probes of an outage
// have their own traces because a message may be tried for days, and a span that begins long after its trace has ended
// is lost or hides the rest.
//
// A message that was delivered in one process, by a forwarder.Subscriber or an in-memory Pub/Sub, is processed in the
// span of that delivery, and linked to create. Messages that a handler returns or publishes with its context belong to
// its process span.
//
// Brokers must carry metadata as headers. The marshalers for Kafka and NATS do; the JSON and Gob marshalers for NATS do
// not. A publisher with its own tracing, such as Kafka's with a Tracer, puts the context of its own span, below send,
// into the message.
//
// # Metrics
//
// Instruments and attributes also follow the conventions: messaging.client.sent.messages,
// messaging.client.operation.duration (for create and send), messaging.client.consumed.messages and
// messaging.process.duration. In addition there are outbox.message.lag, the time from the insert to the publish on the
// database's clock, without messages delayed on purpose, and outbox.dead.messages. The number of pending messages needs
// a query: package observe/prom has a collector for that.
//
// # Cost
//
// `make bench ARGS='-only cost_observers'` measures the cost per message, without sampling and with every span.
// Spans contain no payloads; the text of an error is the status of its span.
package otel
