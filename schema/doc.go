// Package schema creates and checks the tables of an outbox and an inbox.
//
//	applied, err := schema.Migrate(ctx, db, schema.MigrateConfig{})
//
// DDL runs only in Migrate. Call it at deployment, or print the same statements with Files for goose, golang-migrate or
// atlas. Status lists the applied versions. Check compares a live database with the schema that the code needs.
//
// # Tables
//
//	outbox             messages to publish: pending, published and dead
//	outbox_lanes       the owner of each of the 64 lanes of a scope, and its epoch
//	outbox_forwarders  a heartbeat row for each running or waiting forwarder
//	outbox_life        identifies an incarnation of the server; unlogged, so that a crash empties it
//	outbox_topics      paused topics, since when and why
//	outbox_audit       operators' actions and their reasons
//	outbox_idempotency requests with an Idempotency-Key and their responses (package idempotency)
//	outbox_migrations  the versions that Migrate has applied
//	inbox              identities of messages already handled; no payloads
//	inbox_queue        messages of package queue: stored first, processed later
//
// # Order
//
// The position of a message is its id, but ids are not in commit order. Two facts make exact order possible, and Check
// verifies both: the transaction id is assigned before the row id (by the column's default, so plain SQL and COPY obey
// it too), and the sequence assigns ids one at a time, in ascending order.
//
// A lane is a hash of the key, computed by the database in a generated column, so that writers cannot disagree.
// Messages without a key are spread by UUID.
package schema
