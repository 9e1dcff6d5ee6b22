package admin

import (
	"context"
	"time"
)

// Severity is how bad a Finding is.
type Severity int

// The severities.
const (
	Info Severity = iota
	Warning
	Critical
)

// Finding is one thing that is wrong, or may be.
type Finding struct {
	Check    string   `json:"check"` // what was looked at
	Severity Severity `json:"severity"`
	Evidence string   `json:"evidence"`
	Cure     string   `json:"cure"` // the statement or setting that mends it
}

// Log is what a broker keeps of a topic.
type Log interface {
	// Each calls fn with the UUID of each message of a topic that was written since.
	Each(ctx context.Context, topic string, after time.Time, fn func(uuid string) error) error
}
