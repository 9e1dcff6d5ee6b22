// Package schema makes and checks the tables of the outbox and the inbox that a handle works with.
//
// # Tables
//
//	outbox             messages to publish; published, pending and dead ones
//	outbox_lanes       the owner of each of the 64 lanes of a scope, and its epoch
//	outbox_forwarders  one heartbeat row for each running forwarder, or one that waits for others to end
//	outbox_life        what tells one life of the server from another; unlogged, so that a crash empties it
//	outbox_topics      which topics are paused, since when and why
//	outbox_audit       what operators did, and why
//	outbox_idempotency requests with an Idempotency-Key, and their answers, of package idempotency
//	outbox_migrations  which versions Migrate has applied
//	inbox              identities of messages already handled; no payloads
//	inbox_queue        messages of package queue: stored first, processed later
//
// The position of a message is its id, but ids are not commit order. Two facts about the id make it
// possible to read in an exact order all the same, and Check verifies both: the transaction id is
// assigned before the row id (the default of the column does that, so rows written by plain SQL and
// by COPY obey it too), and the sequence hands ids out one by one, upwards.
//
// A lane is a hash of the key, computed by the database in a generated column, so that no two writers
// can disagree about it. Messages without a key are spread by their UUID.
//
// # Changing the schema
//
// Nothing runs DDL by itself. Call Migrate at deployment, or print the same statements with Files for goose,
// golang-migrate or atlas; Status says what was applied. Check compares a live database with what the code needs.
package schema
