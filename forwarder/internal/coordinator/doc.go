// Package coordinator holds the shared decisions of a forwarder's goroutines: who may publish now, when to read and
// what, which lanes are ours, when a call of Drain returns. It joins dispatch, cursor and lease.
//
// It is pure: it has no clock (now is an argument), goroutine, lock, context, logger or database. Each event is a
// method, which the engine calls under its one lock; Effects then returns what the engine must do: statements,
// contexts, goroutines, logs. So a test drives the very code that runs, one event at a time.
//
// A lane goes through these states:
//
//	(not ours) --Took--> taken --LaneLoaded--> reading --MembersRead, Stop--> releasing --Released--> (not ours)
//
// From each of them it is lost immediately by MembersRead (another owns it), Settled (a failure of it was fenced),
// ReadEnds (according to the database it is not ours), ReadAnswered (a new incarnation of the server) and JoinRefused
// (others go first). Messages that are being published then count only if they succeed.
package coordinator
