package dispatch

import "time"

// Effects are the consequences of the events since the last call of Dispatcher.Effects.
type Effects struct {
	Publish int          // how many more workers could publish now, besides those with a call in flight
	Settle  bool         // there are results
	Read    bool         // there is something to ask for, or there is room again
	Free    []Assignment // may be given back to the database
	Recall  []*Call      // their lane is released: take back undelivered messages, with the result Aborted
	Expired []*Call      // end their contexts, find the verdict, call TimedOut
	Reports []Report     // in order
}

// Report is for the log and observers. Which fields are set depends on Kind.
type Report struct {
	Kind         ReportKind
	Topic        string
	ID           int64
	UUID         string
	Key          string
	Lane         int16
	Attempts     int           // RowRejected, RowDead: including this one
	Failures     int           // TopicPaused: in a row. TopicExhausted: hung calls
	Wait         time.Duration // TopicPaused, RowRejected: until the next attempt
	Unclassified bool          // TopicPaused: everything fails, for an unknown reason
	ByOperator   bool          // TopicPaused, TopicResumed: see PauseByOperator
	// TopicPaused, TopicExhausted: nothing changed in a minute. RowRejected: not the first of its topic in a minute
	Repeated bool
	Err      error
}

// ReportKind is the subject of a Report.
type ReportKind uint8

const (
	TopicPaused    ReportKind = iota // its broker cannot be reached
	TopicResumed                     // it is no longer paused or exhausted
	TopicExhausted                   // all of its slots are used by hung calls
	RowRejected                      // a message failed and will be tried again
	RowDead                          // a message will not be tried again
	OrphanFound                      // the sweep found a message that was unknown
	TooManyWaiting                   // more keys have rows on closed topics than may wait for them
)

// Effects returns the consequences of the events since the last call.
func (d *Dispatcher) Effects() Effects {
	e := d.effects
	d.effects = Effects{}
	if !d.stopped {
		e.Publish = min(d.ready, d.freeSlots())
		room := d.HasRoom()
		if room && (d.wantRead || !d.hadRoom) {
			e.Read, d.wantRead = true, false
		}
		d.hadRoom = room
	}
	return e
}

// about returns a report about a row.
func (r *Row) about(kind ReportKind) Report {
	return Report{Kind: kind, Topic: r.Topic, ID: r.ID, UUID: r.UUID, Key: r.Key, Lane: r.Assignment.Lane}
}

func (d *Dispatcher) report(r Report) { d.effects.Reports = append(d.effects.Reports, r) }
