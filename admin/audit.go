package admin

import "time"

// AuditEntry says who did what and why. It is written before the first message is changed, and counts with each batch.
type AuditEntry struct {
	ID     int64     `json:"id"`
	At     time.Time `json:"at"`
	Actor  string    `json:"actor"`
	Action string    `json:"action"` // requeue, discard, skip_head, replay, flush, pause, resume, clean
	Reason string    `json:"reason,omitempty"`
	Filter Filter    `json:"filter"`
	Result Result    `json:"result"`
	// EndedAt is when the act ended; zero while it is under way, and if it was cut off.
	EndedAt time.Time `json:"ended_at,omitzero"`
}
