package queue

import (
	"errors"
)

var (
	// ErrNotFound is returned for a message that is not in the table, or whose Enqueue has not committed yet.
	//
	// Cure: if its Enqueue has not committed yet, call AlreadyProcessed first, which waits for it.
	ErrNotFound = errors.New("queue: message not found")

	// ErrInvalid is returned for an invalid argument, such as an ID without a source. Nothing of the call was done.
	//
	// Cure: correct the field that the error names.
	ErrInvalid = errors.New("queue: invalid")

	// ErrIgnore is returned by your WebhookConfig.Item or IngestConfig.Item to skip a message. It may be wrapped.
	// NewWebhook responds with 200, and Ingest acks the message.
	//
	// Cure: none is needed.
	ErrIgnore = errors.New("queue: ignored")
)
