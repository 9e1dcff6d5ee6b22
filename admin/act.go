package admin

import "context"

// Act says what an act is done to, by whom and why.
type Act struct {
	Filter Filter
	// Limit is how many messages are changed at most; default: all that the filter means.
	Limit int
	// Reason goes into the audit log; Discard and SkipHead keep it with the message too, so they need one.
	Reason string
	// Actor is who does it; default Config.Actor.
	Actor string
	// DryRun counts what the act would change, up to 10,000, and changes nothing.
	DryRun bool
	// Progress, if not nil, is called after each batch, with what was done so far.
	Progress func(ctx context.Context, r Result)
}

// Result says what an act did, also before an error.
type Result struct {
	// Matched is how many messages the filter meant: of a dry run up to 10,000, else those that the act came by.
	Matched Count `json:"matched"`
	// Touched is how many were changed.
	Touched int64 `json:"touched"`
	// Skipped is how many were not, because somebody else had locked or changed them meanwhile.
	Skipped int64 `json:"skipped"`
	// AuditID is the entry in the audit log; 0 for a dry run.
	AuditID int64 `json:"audit_id,omitempty"`
}

// TopicAct says which topic is paused or resumed, by whom and why.
type TopicAct struct {
	Topic  string
	Reason string
	Actor  string // default Config.Actor
}
