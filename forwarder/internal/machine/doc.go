// Package machine decides what the goroutines of a forwarder share: who may publish now, when to read and what, which
// lanes are ours, when a call of Drain is answered.
//
// It is pure: it knows no clock (now is an argument), no goroutine, lock, context, logger or database. Each event is a
// method, which the engine calls under its one lock; Effects says afterwards what is to be done. A method that begins
// with a look only looks. The engine performs: statements, contexts, goroutines, logs. So a test drives the very code
// that runs, one event at a time.
//
// A lane goes through these states:
//
//	(not ours) --Took--> taken --LaneLoaded--> reading --Viewed, Stop--> handing --Released--> (not ours)
//
// From each of them it is lost at once by Viewed (another owns it), Settled (a failure of it was fenced), ReadEnds (the
// database says that it is not ours), ReadAnswered (a new life of the server) and SteppedAside (others go first). What
// is being published then counts only if it succeeds.
package machine
