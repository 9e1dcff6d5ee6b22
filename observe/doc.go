// Package observe lets you watch an outbox and an inbox at work: small interfaces, whose methods take a context and a
// struct. An Observer implements one or more of them and is given to the handle (outbox.DBConfig.Observers), which
// tells it of everything that is done through that handle. A PartitionObserver is given to
// the subscriber (SubscriberConfig.Observers).
//
//	what is seen                                   interface         told
//	transactions: how long, how they ended         TxObserver        around each InTx and middleware.Tx
//	messages written to the outbox                 WriteObserver     around each Publish, before the COMMIT
//	messages handled: outcome, attempts            HandleObserver    around each delivery to a handler
//	messages published: error and verdict          PublishObserver   around each publish, or delivery of a Subscriber
//	messages that will not be retried              DeadObserver      once the database knows
//	topics that pause, and go on                   TopicObserver     at each trial that failed, and at the end
//	partitions read: lag, blocked keys, pauses     PartitionObserver once a second by kafka.Subscriber and nats
//	the forwarder's reads, results, clean-up       EngineObserver    after each statement or round
//	how many lanes a forwarder owns                EngineObserver    after that changed; 0 when it has stopped
//
// PublishEnd.Age says how long a message was in the outbox. Only the database knows how many are pending now: ask
// prom.Collector.
//
// Packages observe/prom and observe/otel, which are modules of their own, are observers for Prometheus and
// OpenTelemetry.
//
// # Contexts and metadata
//
// Where there is a Start, the context that it returns is the one that the work is done with and that End gets; with
// several observers each gets that of the one before, and all Ends get the last. A nil context is ignored. WriteStart
// may set metadata that are stored with the messages. PublishStart may set metadata that go to the broker, or the
// subscriber; those of the next attempt begin as they are stored. So a tracer passes its trace on: WriteStart puts the
// writer's into the message, where PublishStart, and the consumer of the message, find it.
//
// # Threads
//
// Methods must be safe for concurrent use. Those of TxObserver, WriteObserver, HandleObserver and PublishObserver are
// called in the goroutine that does the work, which waits for them. Those of DeadObserver, TopicObserver and
// EngineObserver are called in order in a goroutine of the forwarder's; when more than a thousand of its reports wait,
// further ones are left out, and the log says so. Those of PartitionObserver are called in a goroutine of the
// subscription. A panic is caught and logged, and keeps no other observer from being told.
//
// Payloads are not for observers to show. Fields may be added to the structs, values to Outcome and interfaces to the
// package; an interface never gets another method.
package observe
