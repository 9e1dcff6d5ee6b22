// Package inbox stores messages first and has them processed later, once each: a durable queue in Postgres.
package inbox
