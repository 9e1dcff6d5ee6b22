// Package admin shows and repairs the tables of an outbox and an inbox, for operators and their tools.
//
//	a, err := admin.New(db, admin.Config{Actor: "jane"}, logger)
//	findings, err := a.Doctor(ctx)
//	result, err := a.Requeue(ctx, admin.Action{
//		Filter: admin.Filter{Topic: "orders"},
//		Reason: "the broker's limit is 4 MiB now",
//		DryRun: true,
//	})
//
// Package admin/ui is a web page for it, and outboxctl is its command line.
//
// A message has a State: ready, delayed, failing, dead, done or discarded. A Filter selects messages. An ErrorGroup
// groups messages whose errors differ only in numbers, ids and quoted text.
//
// # Promises
//
// Queries read a bounded number of rows at a time, whatever the size of the tables. A list returns after about a second
// with the messages found so far and the position where the next call continues. Counts are exact up to a bound;
// Count.More reports a larger number.
//
// Only Get reads payloads, so all other methods work for a role that may not read them.
//
// Each action except a dry run is recorded in outbox_audit with its actor and reason.
//
// # Doctor and Reconcile
//
// Doctor reads catalogs, the server's figures and each forwarder's own row, and returns findings, each with a cure. The
// runbook, docs/run/runbook.md, has a row for each finding.
//
// Reconcile compares the published messages that are still kept with the messages that the broker holds, by a
// TopicReader, and sends the missing ones again.
package admin
