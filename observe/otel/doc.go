// Package otel exports traces and metrics of an outbox and an inbox to OpenTelemetry. Traces continue through the
// outbox, the broker and the handler.
//
//	seen, err := otel.NewObserver(otel.ObserverConfig{System: "nats"})
//	db, err := outbox.FromPgx(pool, outbox.DBConfig{Observers: []observe.Observer{seen}}, logger)
//
// # Traces
//
// Names and attributes are those of the semantic conventions for messaging, version 1.43. Each message has these spans:
//
//	span             kind      when                          its parent
//	create <topic>   producer  it is written to the outbox   what wrote it: a request, or the handler of another message
//	send <topic>     client    the forwarder publishes it    create at the first time; a later attempt begins
//	                           it, or delivers it            a trace of its own, which is linked to create
//	process <topic>  consumer  a handler gets it             the span of its context, or create
//
// The context of create, traceparent as a rule, is metadata of the message. So it is stored with it, survives all that
// the forwarder survives, and arrives with the message, whichever attempt delivered it: a copy of a message is
// processed in the same trace. The gap between create and send is the time in the outbox. Further attempts and the
// probes of an outage get traces of their own because a message may be tried for days, and a span that begins long
// after its trace has ended is lost or hides the rest.
//
// A message that was delivered in one process, by a forwarder.Subscriber or an in-memory Pub/Sub, is processed in the
// span of that delivery, and linked to create. What a handler returns or publishes with its context belongs to its
// process span.
//
// Brokers must carry metadata as headers. Kafka's and NATS's marshalers do, JSON and Gob for NATS do not. A publisher
// that traces by itself, as that of Kafka with a Tracer, puts the context of a span of its own into the message that
// it sends, below send.
//
// # Metrics
//
// Instruments and attributes are those of the conventions too: messaging.client.sent.messages,
// messaging.client.operation.duration (for create and send), messaging.client.consumed.messages and
// messaging.process.duration. Beside them are outbox.message.lag, how long messages were in the outbox until they were
// published, on the database's clock and without messages delayed on purpose, and outbox.dead.messages.
// How many messages are pending only a query can tell: package observe/prom has a collector for that.
//
// # What it costs
//
// `make bench ARGS='-only cost_observers'` says what a message costs more, without sampling and with each span made.
// Payloads are in no span; what an error says is the status of its span.
package otel
