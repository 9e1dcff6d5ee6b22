package board

import "time"

// Effects are the consequences of the events since the last call of Board.Effects.
type Effects struct {
	Publish int      // how many more workers could publish now, besides those with a call in flight
	Settle  bool     // there are results
	Read    bool     // there is something to ask for, or there is room again
	Free    []Term   // may be given back to the database
	Recall  []*Call  // their lane is handed back: take back undelivered messages, with the result Aborted
	Expired []*Call  // end their contexts, find the verdict, call TimedOut
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
	Attempts   int           // Retry, Dead: including this one
	Failures   int           // TopicPaused: in a row. TopicJammed: hung calls
	Wait       time.Duration // TopicPaused, Retry: until the next attempt
	Guessed    bool          // TopicPaused: everything fails, for an unknown reason
	ByOperator bool          // TopicPaused, TopicResumed: see PauseByOperator
	// TopicPaused, TopicJammed: nothing changed in a minute. Retry: not the first of its topic in a minute
	Repeated bool
	Err      error
}

// ReportKind is the subject of a Report.
type ReportKind uint8

const (
	TopicPaused  ReportKind = iota // its broker cannot be reached
	TopicResumed                   // it is no longer paused or jammed
	TopicJammed                    // all of its slots are used by hung calls
	RowRejected                    // a message failed and will be tried again
	RowDead                        // a message will not be tried again
	OrphanFound                    // the sweep found a message that was unknown
	TooManyWait                    // more keys have rows on closed topics than may wait for them
)

// Effects returns the consequences of the events since the last call.
func (b *Board) Effects() Effects {
	e := b.effects
	b.effects = Effects{}
	if !b.stopped {
		e.Publish = min(b.ready, b.freeSlots())
		room := b.HasRoom()
		if room && (b.moreToCatch || !b.hadRoom) {
			e.Read, b.moreToCatch = true, false
		}
		b.hadRoom = room
	}
	return e
}

// about returns a report about a row.
func (r *Row) about(kind ReportKind) Report {
	return Report{Kind: kind, Topic: r.Topic, ID: r.ID, UUID: r.UUID, Key: r.Key, Lane: r.Term.Lane}
}

func (b *Board) report(r Report) { b.effects.Reports = append(b.effects.Reports, r) }
