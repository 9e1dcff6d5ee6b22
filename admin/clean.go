package admin

import "time"

// CleanConfig says what Clean deletes. Forwarders and dispatchers do that by themselves; Clean is for jobs where they do not.
type CleanConfig struct {
	// OutboxRetention, InboxRetention and QueueRetention are how long what is done is kept; 0 = the table is left alone.
	OutboxRetention, InboxRetention, QueueRetention time.Duration
}

// CleanResult is how many rows were deleted.
type CleanResult struct {
	Outbox int64 `json:"outbox"`
	Inbox  int64 `json:"inbox"`
	Queue  int64 `json:"queue"`
}
