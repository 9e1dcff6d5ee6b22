// Bench compares the forwarder with its alternatives, in one run on one machine.
//
//	go run .                          everything, in 20 minutes
//	go run . -budget 0                everything, for as long as it takes: up to an hour on a noisy machine
//	go run . -quick                   rows that a change to the engine is likely to slow down, in a few minutes
//	go run . -only drain_keep         rows and figures whose name matches a regular expression
//	go run . -svg ../docs/performance.svg -markdown performance.md
//	go test -bench . -count 10        time, allocations and bytes per message, for benchstat
//
// With -quick it measures drains without a broker, a hot key, failing keys, middlewares, in-process latency, and the
// queue's dispatcher, in three rounds. On a noisy machine it takes twice as long, because rounds are repeated.
//
// It starts the servers that it needs (see package services), prints a table, and for each row a line
// "RATIO <name> <value> floor <floor>", or "UNJUDGED <name> <why>". It exits with
//
//	0   each row reaches its floor
//	1   a row is below its floor, or broken, or something failed
//	3   no row is below its floor, and some could not be judged: repeat those with -only, on a machine that does nothing
//	    else
//
// # Time
//
// Groups of rows share the time of -budget in proportion to the time that each takes on a quiet machine; unused time
// goes to later groups. A side has at least two rounds, up to -rounds while there is time, and then repeated rounds.
// When the budget is used up no round begins, so a run may end one round late.
//
// # Method
//
// Absolute numbers depend more on the machine than on the program, so each row is a ratio of two sides that are
// measured in the same run, their rounds interleaved: A B A B. The value is the ratio of the medians. A slow rival
// gets fewer rounds, and if its row says so fewer messages; messages per second are compared. If less is better, as
// with latencies, the ratio is rival / ours, so that more is always better.
//
// If the rounds of a side differ by more than half of their median, the machine was busy with something else: all
// sides of its group then run again, each drops its strangest round, and the row says so. If that did not help, or
// there was no time for it, a row is judged only if its ratio is above the floor in the worst case of the measured
// rounds, or below it in the best. Otherwise it is not judged, whatever its median is.
//
// Rows that measure a table under a long transaction have sides whose rounds continue in the same tables: ten each,
// interleaved like all others, of which the last three count. Each side has its own server, because snapshots list the
// transactions of all databases of a server. A side that slows down with its table stays slow when rounds are repeated,
// and the row says that it fell; noise passes. The clean-up of the other sides' servers costs all sides alike.
//
// Rows of partitions compare a partitioned outbox with a plain one: bytes of WAL for removing old messages, after a
// checkpoint, so that whole pages are written as in production, and pages that a statement visits with a generic plan.
//
// All other runs of a side have their own empty database, which is dropped afterwards: which is a checkpoint, so all
// start alike. Then messages are loaded, which is not counted, and drained. Time runs from the moment a side is
// connected, and a forwarder owns its lanes, until all messages are settled in the database. Postgres has its default
// settings with fsync on, and the forwarder its defaults except those that the row names, with sweep and cleaning.
//
// Wrong results do not count: every run of a side ends by checking that each message arrived, in order for each key,
// and that every row is settled; with a broker also that the broker has the same number. The publisher that checks is
// the same on both sides, and does nothing else in the rows of a no-op publisher.
//
// # Fairness
//
// The hand-written loop is an afternoon's work of a good engineer, with a low-water mark and a thousand rows at a time,
// on the same table and the same indexes. It has no second process and no retries, and misses late commits. Without
// statistics the planner gives it a plan that is several times slower, so all sides are measured with fresh ones.
//
// A partition of Kafka is read by both subscribers with the same Router, Stack and handler, one INSERT, from the first
// call of it until the last message is committed; joining the group is not counted. Then each message has a row, and
// none overtook another of its key.
//
// Claims are compared with a loop on its own table, which has the usual columns: duplicates by a unique constraint, a
// status, attempts, owner and lease, an index of ready rows. It ignores expired leases, and misses late commits.
//
// Watermill's forwarder reads batches of a thousand messages of its own publisher, with BYTEA payloads and envelopes.
// With a broker both sides use the same publisher with the same settings.
//
// River runs with a fetch cooldown and a poll interval of 1 ms besides its notifier, its fastest settings; inserts
// notify of each job immediately.
//
// The cost of a message in the database is not a ratio: the bytes of WAL are the same on every machine. Processor time
// is the total of all server processes, and depends on the machine.
//
// Middlewares are compared with exactly their own statements, run through the same pool.
package main
