// Package observe defines the interfaces for watching an outbox and an inbox at work; their methods take a context and
// a struct.
//
//	db, err := outbox.FromPgx(pool, outbox.DBConfig{Observers: []observe.Observer{mine}}, logger)
//
// An Observer implements one or more of them:
//
//	WriteObserver      around each Publish to the outbox, before the COMMIT
//	HandleObserver     around each delivery to a handler: outcome, attempts
//	PublishObserver    around each publish, or delivery of a Subscriber: error and verdict
//	DeadObserver       messages that will not be retried, once the database has recorded it
//	TopicObserver      a paused topic: each failed probe, and the end of the pause
//
// The modules observe/prom and observe/otel have observers for Prometheus and OpenTelemetry. The one for Prometheus
// also counts transactions and the forwarder's statements, and shows the partitions of the subscribers of kafka and
// nats.
//
// # Contexts and metadata
//
// The context returned by Start is used for the work and passed to End. Several observers are chained. WriteStart may
// set metadata, which is stored with the messages; PublishStart may set metadata for this attempt only.
//
// # Concurrency
//
// Methods must be safe for concurrent use. Methods of Write-, Handle- and PublishObserver run in the working goroutine,
// which waits for them; the others run in order in a goroutine of the forwarder. If more than 1,000 reports of a
// forwarder wait, further ones are dropped, which is logged. A panic is caught and logged.
//
// Do not expose payloads. Structs may get fields, Outcome values and the package interfaces; interfaces never get new
// methods.
//
// PublishEnd.Age is the time that a message spent in the outbox.
package observe
