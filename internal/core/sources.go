package core

import (
	"context"
	"sync"

	"github.com/millrace-go/watermill-outbox/internal/facts"
)

// Source is a subscription of a subscriber that reads by key. It does not know the database.
type Source struct {
	// Blocked returns the partitions that are paused because a message keeps failing or handlers hang. over means that the
	// subscription has ended. It must be safe for concurrent use.
	Blocked func() (partitions []facts.Partition, over bool)
}

type sourceKey struct{}

// WithSource records in the context of a message which subscription it belongs to.
func WithSource(ctx context.Context, s *Source) context.Context {
	return context.WithValue(ctx, sourceKey{}, s)
}

// sources records the subscriptions whose messages were handled through a handle. A forwarder writes their blocked
// partitions to its row, where Doctor finds them.
type sources struct{ known sync.Map } // set of *Source; each message reads it

// ReadsFrom records the subscription in the context of a message, if any.
func (db *DB) ReadsFrom(ctx context.Context) {
	s, _ := ctx.Value(sourceKey{}).(*Source)
	if s == nil {
		return
	}
	if _, known := db.sources.known.Load(s); known {
		return
	}
	db.Blocked() // if no forwarder polls, ended subscriptions are removed when another begins
	db.sources.known.Store(s, nil)
}

// Blocked returns the partitions, of all recorded subscriptions that have not ended, that are paused because a message
// keeps failing or handlers hang.
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
