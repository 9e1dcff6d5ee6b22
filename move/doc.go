// Package move lets code that publishes with watermill-sql write into the outbox, without a change to its transactions
// and Publish calls. docs/guides/moving.md has the steps, and the commands of outboxctl that move pending messages here
// and back.
//
// The example is compiled and not run: it needs tables on PostgreSQL.
package move
