// Bench shows what the forwarder can do beside what one would use instead, in one run on one machine.
//
//	go run .                          everything, in 20 minutes
//	go run . -budget 0                everything, for as long as it takes: up to an hour on a noisy machine
//	go run . -quick                   what a change to the engine is likely to spoil, in a few minutes
//	go run . -only drain_keep         rows and figures whose name matches a regular expression
//	go run . -svg ../docs/performance.svg -markdown performance.md
//	go test -bench . -count 10        time, allocations and bytes per message, for benchstat
//
// With -quick it measures drains with no broker, a hot key, failing keys, middlewares, the latency in process, and the
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
// Groups of rows share the time of -budget by what each takes when it is quiet, and what one leaves is for those after
// it. A side has two rounds in any case, up to -rounds as long as there is time, and then those that are repeated. When
// the budget is over nothing more begins, so a run may end one round late.
//
// # Method
//
// Absolute numbers say more about a machine than about a program, so each row is a ratio of two sides that are
// measured in the same run, their rounds interleaved: A B A B. The value is the ratio of the medians. A slow rival
// gets fewer rounds, and where its row says so fewer messages; messages per second are compared. Where less is better,
// as with latencies, the ratio is rival / ours, so that more is always better.
//
// When the rounds of a side lie apart by more than half of their median, the machine was busy with something else: all
// sides of its group then run again, each drops its strangest round, and the row says so. Where that did not help, or
// there was no time for it, a row is judged only if its ratio is above the floor in the worst case, or below it in the
// best, of the rounds that were measured. Otherwise it is not judged, whatever its median says.
//
// Rows that watch what becomes of a table under a long transaction have sides whose rounds go on where the last one
// ended: ten each, in turn as all others, of which the last three count. Each side has a server of its own, because the
// snapshots of a server list the transactions of all its databases. A side that slows down with its table stays slow
// when rounds are repeated, and the row says that it fell; noise passes. What the other sides' servers clean up
// meanwhile costs all of them alike.
//
// Rows of partitions compare an outbox in partitions with a plain one: bytes of WAL when old messages go, after a
// checkpoint, so that whole pages are written as in production, and pages that a statement visits with a plan for any
// arguments.
//
// Each other run of a side has an empty database of its own, which is dropped after it: that is a checkpoint, so
// all begin alike. Then messages are loaded, which is not counted, and drained. Time runs from the moment a side
// is connected, and a forwarder owns its lanes, until all is settled in the database. Postgres has its default
// settings with fsync on, the forwarder its defaults but for what the row names, its sweep and cleaning included.
//
// No result counts that is wrong: every run of a side ends by checking that each message came, that none of a key
// overtook another, and that every row is settled; through a broker also that the broker has as many. The publisher
// that checks is the same on both sides, and does nothing else in the rows that speak of a no-op publisher.
//
// # Fairness
//
// The hand-written loop is what a good engineer writes in an afternoon, with a low mark and a thousand rows at
// a time, on the same table and the same indexes. It has no second process, no retries, and misses what commits late.
// Without statistics the planner gives it a plan that is several times slower, so all sides are measured with fresh
// ones.
//
// A partition of Kafka is read by both subscribers with the same Router, Stack and handler, one INSERT, from the first
// call of it until the last message is committed; joining the group is not counted. Then each message has a row, and
// none overtook another of its key.
//
// Claims are compared with a loop on a table of its own, which has what such a table has: known messages by a unique
// constraint, a status, attempts, owner and lease, an index of what is ready. It gives back nothing whose lease is
// over, and misses what commits late.
//
// Watermill's forwarder reads batches of a thousand, with BYTEA payloads, what its own publisher wrote, envelope
// included. Through a broker both sides use the same publisher with the same settings.
//
// River runs with a fetch cooldown and a poll interval of 1 ms beside its notifier, which is the quickest it can be
// told to be; an insert notifies of each job at once, too.
//
// What a message costs the database is not a ratio: the bytes of WAL are the same on every machine. Processor time is
// that of all processes of the server, and moves with the machine.
//
// The statements that middlewares are compared with are the very same, through the same pool.
package main
