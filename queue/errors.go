package queue

import (
	"errors"
)

var (
	// ErrNotFound is returned by Get, MarkProcessing, MarkProcessed and MarkDead for a message that is not in the table, or that an
	// Enqueue stores which has not committed yet. To mark it all the same, call AlreadyProcessed first: it waits until that Enqueue has
	// ended, and notes the message if there is none. Then mark it again.
	ErrNotFound = errors.New("queue: no such message")

	// ErrInvalid is returned for what cannot be stored, or not as it is: an ID without a source, a topic of 300 characters,
	// a lease of no time. Nothing of the call was done.
	ErrInvalid = errors.New("queue: invalid")

	// ErrIgnore is what WebhookConfig.Item and IngestConfig.Item return, alone or wrapped, for what is not to be stored, such as an
	// event of a type that nobody handles: then the webhook answers 200, and the message of a broker is acked.
	ErrIgnore = errors.New("queue: ignored")
)
