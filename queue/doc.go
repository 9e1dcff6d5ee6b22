// Package queue stores messages first and processes them later, once each: a durable queue in Postgres.
//
//	store, err := queue.NewStore(db, queue.StoreConfig{}, logger)
//	_, err = store.Enqueue(ctx, queue.Item{ID: id, Topic: "invoice.paid", Payload: payload})
//	d, err := queue.NewDispatcher(store, queue.DispatcherConfig{Service: "billing", Handlers: handlers}, logger)
//	err = d.Run(ctx)
//
// Ingest, NewWebhook and NewPublisher store messages too; Subscriber delivers them to a Router; Store.Claim is for your
// own loops.
//
// # Promises
//
// A message is stored once under the ID that its sender gave it: a duplicate is not stored again. The handler's writes
// and the ack are one transaction. If it fails, the message is retried later, until it succeeds or is dead. A Detached
// handler runs outside a transaction, under a lease that is renewed, and may run again after a crash.
//
// A claimed message belongs to one owner until its lease ends; if its process dies, the message is released, and one
// attempt is counted.
//
// Order is not promised: docs/guides/queue.md has a recipe for order per key.
//
// # From other languages
//
// Plain SQL stores a message as well:
//
//	INSERT INTO inbox_queue (source, message_id, topic, state, payload)
//	VALUES ('billing', '4711', 'invoice.paid', 'processing', '{"amount": 5}')
//	ON CONFLICT (source, message_id) DO UPDATE
//	SET topic = excluded.topic, state = 'processing', payload = excluded.payload,
//	    due_at = clock_timestamp(), last_seen_at = clock_timestamp()
//	WHERE inbox_queue.state = 'seen';
//
// Leave id to its default, and due_at NULL or in the future by the clock of the database. A payload with a backslash
// must be bytes, or convert_to(the_text, 'UTF8'). metadata is a JSON object of strings. A message that was only looked
// up, by AlreadyProcessed, gets its content here; other copies change nothing. Set other columns in both places.
// Dispatchers find the message at their next poll.
//
// The examples are compiled and not run: they need tables on PostgreSQL.
package queue
