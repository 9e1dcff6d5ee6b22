package board

import "time"

// Effects is what came of the events since it was asked for last.
type Effects struct {
	Publish int      // so many workers beside those with a call under way are of use, as of now
	Settle  bool     // there are results
	Read    bool     // something is to be asked for, or there is room again
	Free    []Term   // may be given back to the database
	Recall  []*Call  // their lane is handed back: take back what no handler has received yet, and answer Aborted
	Expired []*Call  // end their contexts, find the verdict, tell TimedOut
	Reports []Report // in order
}

// Report is for the log and observers. Which fields are set depends on Kind.
type Report struct {
	Kind       ReportKind
	Topic      string
	ID         int64
	UUID       string
	Key        string
	Lane       int16
	Attempts   int           // Retry, Dead: with this one
	Failures   int           // TopicPaused: in a row. TopicJammed: hung calls
	Wait       time.Duration // TopicPaused, Retry: until the next attempt
	Guessed    bool          // TopicPaused: everything fails, for an unknown reason
	ByOperator bool          // TopicPaused, TopicResumed: see PauseByOperator
	// TopicPaused, TopicJammed: nothing changed in a minute. Retry: not the first of its topic in a minute
	Repeated bool
	Err      error
}

// ReportKind says what a Report is about.
type ReportKind uint8

const (
	TopicPaused  ReportKind = iota // its broker cannot be reached
	TopicResumed                   // it is neither paused nor jammed any more
	TopicJammed                    // as many calls of it hang as may be under way
	RowRejected                    // a message failed and will be tried again
	RowDead                        // a message will not be tried again
	StrayFound                     // the sweep found a message that was unknown
	TooManyWait                    // more keys have rows on closed topics than may wait for them
)

// Effects returns what came of the events since the last call.
func (b *Board) Effects() Effects {
	e := b.effects
	b.effects = Effects{}
	if !b.stopped {
		e.Publish = min(b.ready, b.places())
		room := b.HasRoom()
		if room && (b.asksMore || !b.hadRoom) {
			e.Read, b.asksMore = true, false
		}
		b.hadRoom = room
	}
	return e
}

// about makes a report about a row.
func (r *Row) about(kind ReportKind) Report {
	return Report{Kind: kind, Topic: r.Topic, ID: r.ID, UUID: r.UUID, Key: r.Key, Lane: r.Term.Lane}
}

func (b *Board) report(r Report) { b.effects.Reports = append(b.effects.Reports, r) }
