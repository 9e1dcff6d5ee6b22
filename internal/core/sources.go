package core

import (
	"context"
	"sync"

	"github.com/millrace-go/watermill-outbox/internal/facts"
)

// Source is a subscription of a subscriber that reads by key. It itself has no database.
type Source struct {
	// Blocked returns the partitions that are paused behind a message which keeps failing, or by handlers that hang. Over:
	// the subscription has ended. It must be safe for concurrent use.
	Blocked func() (partitions []facts.Partition, over bool)
}

type sourceKey struct{}

// WithSource says in the context of a message which subscription it is of.
func WithSource(ctx context.Context, s *Source) context.Context {
	return context.WithValue(ctx, sourceKey{}, s)
}

// sources are the subscriptions whose messages were handled through a handle. A forwarder says in its row which of
// their partitions are blocked, so that Doctor sees it.
type sources struct{ known sync.Map } // *Source to nothing; read by each message

// ReadsFrom notes the subscription that the context of a message names, if any.
func (db *DB) ReadsFrom(ctx context.Context) {
	s, _ := ctx.Value(sourceKey{}).(*Source)
	if s == nil {
		return
	}
	if _, known := db.sources.known.Load(s); known {
		return
	}
	db.Blocked() // where no forwarder polls, subscriptions that have ended are removed when another begins
	db.sources.known.Store(s, nil)
}

// Blocked are the partitions that are paused behind a message which keeps failing, or by handlers that hang, of all
// that was noted and has not ended.
func (db *DB) Blocked() (all []facts.Partition) {
	for s := range db.sources.known.Range {
		blocked, over := s.(*Source).Blocked()
		if over {
			db.sources.known.Delete(s)
		}
		all = append(all, blocked...)
	}
	return all
}
