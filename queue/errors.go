package queue

import (
	"errors"
)

var (
	// ErrNotFound is returned by Get, MarkProcessing, MarkProcessed and MarkDead for a message that is not in the table,
	// or that an Enqueue stores which has not committed yet.
	//
	// Cure: call AlreadyProcessed first, which waits until that Enqueue has ended and notes the message if there is
	// none; then mark it again.
	ErrNotFound = errors.New("queue: message not found")

	// ErrInvalid is returned for what cannot be stored, or not as it is: an ID without a source, a topic of 300
	// characters, a lease of no time. Nothing of the call was done.
	//
	// Cure: correct the field that the error names.
	ErrInvalid = errors.New("queue: invalid")

	// ErrIgnore is what WebhookConfig.Item and IngestConfig.Item return, alone or wrapped, for what is not to be stored,
	// such as an event of a type without a handler: then the webhook answers 200, and the message of a broker is acked.
	//
	// Cure: none is needed.
	ErrIgnore = errors.New("queue: ignored")
)
