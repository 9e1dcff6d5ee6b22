// Package integration has the tests of the promises of all modules, on real servers, which the tests start themselves.
// They are one package because they share these servers and the helpers.
//
// A file's name begins with the promise that its tests check. A new file takes one of these prefixes; add a new
// promise here first.
//
// Transactions:
//
//   - tx_: a handler's transaction is committed or rolled back as a whole, however it is begun, repeated or ended
//   - brokers_: if a publisher returns nil its broker has stored the message; errors blame the message or the broker
//   - amqp_: RabbitMQ confirms, refuses and returns what the forwarder publishes
//   - cloudevents_: messages are CloudEvents to the official SDK, and its events are messages
//   - publisher_: a publisher stores messages byte by byte in the transaction of its context
//   - inbox_: a message that is delivered again is applied once, and cleaning the inbox deletes no key too early
//   - http_: an HTTP request that is repeated with its key is carried out once, and gets the same response
//   - batch_: a batch of messages is handled in one transaction, and a bad one fails alone
//   - middleware_: the stack around a handler captures, acks, retries and charges as documented
//
// The forwarder:
//
//   - forwarder_: committed messages are published soon, and once while nothing fails, from start to stop
//   - order_: messages of a key are published in the order of their transactions, under everything at once
//   - lanes_: each lane has one owner, which keeps it while it lives and releases it when it stops
//   - blocked_: a message that is refused, a row that is locked or a topic that hangs delays only its own key or topic
//   - outage_: while a broker cannot be reached, its topic is paused and no attempt is charged
//   - dead_letters_: a message dies for a reason, once, with a dead letter, and never without one
//   - faults_: processes, connections and servers are killed, stopped and restored, and nothing is lost or invented
//
// The queue:
//
//   - queue_: a store keeps acknowledged messages, refuses invalid ones, and delivers to any Router
//   - claims_: a message has one owner at a time, and only the owner settles it, charged for failures alone
//   - dispatch_: handlers run within their limits, and no topic, key or slow handler starves another
//   - inbound_: messages of kafka.Subscriber are handled concurrently, in order by key, and applied once, and a failing
//     key blocks nothing else, through crashes, freezes, rebalances and restarts
//   - ingest_: messages of a broker or a webhook are acknowledged after they are stored, and not before
//   - ibx_: the requirements of the specification, by number; ibx.md is written from them
//   - fleet_: one process works for many databases, and a slow or unreachable one does not delay the others
//
// Operations:
//
//   - admin_: an act changes exactly the selected messages, and lists are complete
//   - page_: the page shows and does what package admin can, and withstands attacks
//   - outboxctl_: the command does the same in a terminal, asks for confirmation, and hides secrets
//   - doctor_: errors and Doctor report a problem, its evidence, and a command that fixes it
//   - observe_: metrics, traces and observers report events, and neither they nor logs contain payloads or secrets
//   - reconcile_: published messages that the broker lost are found and sent again
//   - partitions_: partitions are created ahead and dropped when all their rows are settled; no message is hidden
//   - move_: messages are moved from and to other tables, in order, none lost or doubled
//
// The database and brokers:
//
//   - schema_: migrations succeed or leave nothing, and Check reports what is missing and its cure
//   - roles_: each role does its own work, and nothing else
//   - plans_: statements use their indexes, whatever the statistics say, and are as few as promised
//   - postgres_: the promises hold with any supported release, setting and kind of server
//   - kafka_: each key goes to one partition, and errors are classified
//   - nats_: JetStream drops copies, metadata are not obeyed as commands, and errors are classified
//
// Documents:
//
//   - outboxtest_: users' tests check the effects of the stack, each in its own schema
//   - documents_: commands, programs, figures and statements in the documents work as printed
//
// No promise:
//
//   - support_: servers, proxies, stand-ins and fixtures that several of the others use
package integration
