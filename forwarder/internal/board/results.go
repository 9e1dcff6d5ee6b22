package board

import "time"

// Failure is a failed attempt on its way into the database.
type Failure struct {
	Row       *Row
	Err       error
	Attempts  int           // with this one
	Delay     time.Duration // until the next attempt
	Permanent bool
}

// Outcome is what the database made of a failure.
type Outcome struct {
	Failure
	Kind OutcomeKind
}

// OutcomeKind is the database's answer to a failure.
type OutcomeKind uint8

const (
	Waiting OutcomeKind = iota // recorded; another attempt is due after the delay
	Dead                       // recorded; there will be no other attempt
	Gone                       // somebody else settled or deleted the message
	Fenced                     // the lane is somebody else's
	Locked                     // not recorded: somebody's transaction has locked the row
)

// Results hands out what is to be settled, at most so many of each kind, oldest first. The caller has them until it tells
// Settled or Unsettled.
func (b *Board) Results(most int) (published []*Row, failed []Failure) { return nil, nil }

// Settled takes the database's answers. A locked failure is handed out again.
func (b *Board) Settled(now time.Time, published []*Row, failed []Outcome) {}

// Unsettled takes results that were given up at a stop: their messages will be sent again.
func (b *Board) Unsettled(published []*Row, failed []Failure) {}
