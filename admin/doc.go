// Package admin looks at the tables of an outbox and repairs them: what an operator needs at three in the morning.
//
// # Words
//
// A message has a State: ready, delayed, failing, dead, done or discarded. A Filter says which messages are meant; an
// ErrorGroup is messages whose errors differ in numbers, ids and quoted text alone.
//
// # Quick whatever is in the tables
//
// What looks reads a bounded number of rows at a time. A list walks an index in the order of its pages: each step looks
// at so many rows, keeps those that fit the filter, and says from where the next one goes on. After about a second the
// call returns what it has, how far it came and where to go on. Where an
// index has the messages by topic or by lane, a step looks at some of each and merges them up to its horizon, the first
// of the places at which it stopped. Figures are counted up to a bound, and say so (Count.More).
//
// No index serves package admin alone that a writer pays for, so Find searches the outbox as a list does. Dead and
// failing messages have indexes by topic, since there are few; ready and delayed ones are counted lane by lane, the
// oldest first.
//
// Doctor reads catalogs, the server's figures and the bounded figures above. What only a forwarder knows (its
// publisher, its timeouts, its pool, its role) it has written into its row when it registered.
//
// Its checks are
//   - of the tables: schema, privileges, retention, size, vacuum;
//   - of the forwarders: forwarders, forwarder_vanished, forwarder_waits, classify, pool, timeouts, consumers;
//   - of messages: topic_paused, topic_unavailable, topic_unread, backlog, failing, dead;
//   - of others on the server: table_lock, idle_transaction, long_transaction, prepared_transactions,
//     replication_slots, connections, notify_queue, listen;
//   - of the Brokers that it is given: broker.
//
// Two programs that use one name of a consumer are seen where each runs a forwarder on the handle of its middlewares.
//
// # What a broker lost
//
// An outbox ends at the acknowledgement. Reconcile goes one step further: it compares the published messages that are
// still kept with a TopicReader, which is what the broker really holds, and sends those again that are missing there.
//
// Payloads are read by Get alone, so that all else works for a role that may not read them.
package admin
