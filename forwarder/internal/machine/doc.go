// Package machine holds the shared decisions of a forwarder's goroutines: who may publish now, when to read and what,
// which lanes are ours, when a call of Drain is answered.
//
// It is pure: it has no clock (now is an argument), no goroutine, lock, context, logger or database. Each event is a
// method, which the engine calls under its one lock; Effects then returns what must be done. The engine performs it:
// statements, contexts, goroutines, logs. So a test drives the very code that runs, one event at a time.
//
// A lane goes through these states:
//
//	(not ours) --Took--> taken --LaneLoaded--> reading --Viewed, Stop--> handing --Released--> (not ours)
//
// From each of them it is lost immediately by Viewed (another owns it), Settled (a failure of it was fenced), ReadEnds
// (according to the database it is not ours), ReadAnswered (a new incarnation of the server) and SteppedAside (others
// go first). Messages that are being published then count only if they succeed.
package machine
