// Package integration has the tests of the promises of all modules, on real servers, which the tests start themselves.
// They are one package because they share these servers and the helpers.
//
// A file's name begins with the promise that its tests hold. A new file takes one of these prefixes; a new promise gets
// a line here first.
//
// What is committed together:
//
//   - tx_: what a handler does in one transaction is committed or undone as one, whoever begins, repeats or ends it
//   - brokers_: a publisher's nil means that its broker has stored the message, and its errors name who is at fault
//   - amqp_: RabbitMQ confirms, refuses and returns what the forwarder publishes
//   - cloudevents_: messages are CloudEvents to the official SDK, and its events are messages
//   - publisher_: a publisher stores what it was given, byte by byte, in the transaction of its context
//   - inbox_: a message that is delivered again is applied once, and cleaning the inbox forgets no key too early
//   - http_: an HTTP request that is repeated under its key is carried out once, and gets the same answer
//   - batch_: a batch of messages is handled in one transaction, and a bad one fails alone
//   - middleware_: the stack around a handler captures, acks, retries and charges as its comments say
//
// What the forwarder does:
//
//   - forwarder_: what was committed is published soon, and once while nothing fails, from start to stop
//   - order_: messages of a key are published in the order of their transactions, under everything at once
//   - lanes_: each lane has one owner, who keeps it as long as it lives and gives it back when it leaves
//   - blocked_: a message that is refused, a row that is locked or a topic that hangs delays only its own key or topic
//   - outage_: while a broker cannot be reached, its topic is paused and no attempt is charged
//   - dead_letters_: a message dies for a reason, once, with a letter, and never without one
//   - faults_: processes, connections and servers are killed, stopped and set back, and nothing is lost or invented
//
// What the queue does:
//
//   - queue_: a store keeps what it acknowledged, refuses what it cannot keep, and hands it to any Router
//   - claims_: a message has one owner at a time, and only the owner settles it, charged for failures alone
//   - dispatch_: handlers run within their limits, and no topic, key or slow handler starves another
//   - inbound_: what kafka.Subscriber reads is handled in order by key, many at once, applied once, and a failing key
//     blocks nothing else, through crashes, freezes, rebalances and restarts
//   - ingest_: what a broker or a webhook brings is acknowledged after it is stored, and not before
//   - ibx_: the requirements of the specification, by number; ibx.md is written from them
//   - fleet_: one process works for many databases, and one that is slow or gone costs the others nothing
//
// What operators see and do:
//
//   - admin_: an act changes exactly what it was told to, and lists show what is there
//   - page_: the page shows and does what package admin can, and withstands attacks
//   - outboxctl_: the command does the same in a terminal, asks before it acts, and hides secrets
//   - doctor_: errors and Doctor say what is wrong, on what evidence, and name a command that mends it
//   - observe_: metrics, traces and observers tell what happened, and with the logs nothing of payloads and secrets
//   - reconcile_: what the outbox published and the broker lost is found, and sent again
//   - partitions_: partitions are made ahead, and dropped when all in them is settled; every message stays in sight
//   - move_: messages are moved from and to other tables, in order, none lost or doubled
//
// What it stands on:
//
//   - schema_: migrations succeed or leave nothing, and Check names what is missing and its cure
//   - roles_: each role does its own work, and nothing else
//   - plans_: statements use their indexes, whatever the statistics say, and are as few as promised
//   - postgres_: any supported release, setting and kind of server keeps the promises
//   - kafka_: Kafka gets each key in its partition, and errors are told apart
//   - nats_: JetStream drops copies, obeys no metadata, and errors are told apart
//
// What is said about it:
//
//   - outboxtest_: tests of users see what the stack does, each in a schema of its own
//   - documents_: commands, programs, figures and statements in the documents work as printed
//
// And no promise:
//
//   - support_: servers, proxies, stand-ins and fixtures that several of the others use
package integration
