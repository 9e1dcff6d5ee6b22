package queue

import (
	"errors"
)

var (
	// ErrUnknown is returned by Get, MarkProcessing, MarkProcessed and MarkDead for a message that is not in the table.
	ErrUnknown = errors.New("queue: unknown message")

	// ErrInvalid is returned for what cannot be stored, or not as it is: an ID without a source, a topic of 300 characters,
	// a lease of no time. Nothing of the call was done.
	ErrInvalid = errors.New("queue: invalid")
)
