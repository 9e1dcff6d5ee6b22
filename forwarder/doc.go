// Package forwarder is the read side of the outbox: it drains the table into any Watermill publisher (Forwarder) or
// delivers it as a subscriber (Subscriber).
//
//	f, err := forwarder.New(db, pub, forwarder.Config{}, logger)
//	...
//	err = f.Run(ctx)
//
// Run two or more processes for a quick failover: they share the work. A Group drains the outboxes of many databases.
//
// # Promises
//
//   - A committed message is published, or is visible as dead with its error. A message of a rolled-back transaction is
//     never sent.
//   - A message may be sent twice after a crash or a timeout, always under the same UUID.
//   - If one transaction committed before another inserted a message with the same key, its message is published first,
//     even across retries and forwarders. A repetition may follow later messages.
//   - A failing message blocks its own key and nothing else.
//   - No transaction is open while the publisher is called.
//
// # Errors of the publisher
//
// A PublishError, or Config.Classify, gives the verdict. Unavailable pauses the topic without counting attempts and
// probes it. Retry counts an attempt and blocks the key until the next one. Permanent makes the message dead
// immediately. After MaxAttempts, and MinDeadAge after it was written, a message is dead, and its dead letter is
// written in the same statement if Config.DeadLetterTopic is set. Without a verdict a circuit breaker decides: after
// the failures of five different messages without a success it pauses the topic. docs/guides/failures.md has the
// details.
//
// Publish must not return nil before the broker has the message, and must send a key to the same partition or queue
// each time. Packages kafka, nats and amqp do so, watermill-amqp does not: docs/start/rabbitmq.md. WithVerdicts
// gives verdicts to the errors of a publisher that has none.
//
// docs/reference/architecture.md has the protocol.
package forwarder
