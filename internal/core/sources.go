package core

import (
	"context"
	"errors"
	"sync"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/facts"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// Source is a subscription of a subscriber that reads by key. It itself has no database.
type Source struct {
	// Blocked returns the partitions that are paused behind a message which keeps failing, or by handlers that hang. Over:
	// the subscription has ended. It must be safe for concurrent use.
	Blocked func() (partitions []facts.Partition, over bool)
	// Unparked is the topic of what a subscription of the same group would have parked that can; this one cannot deliver
	// that. Empty: it can, or there is no parking.
	Unparked string
}

type sourceKey struct{}

// WithSource says in the context of a message which subscription it is of.
func WithSource(ctx context.Context, s *Source) context.Context {
	return context.WithValue(ctx, sourceKey{}, s)
}

// sources are the subscriptions whose messages were handled through a handle. A forwarder says in its row which of
// their partitions are blocked, so that Doctor sees it.
type sources struct{ known sync.Map } // *Source to nothing; read by each message

// ReadsFrom notes the subscription that the context of a message names, if any. At the first message of one that does
// not park it asks the transaction whether keys of its group are parked: then it says so, and asks again next time.
func (db *DB) ReadsFrom(ctx context.Context, q drive.Querier) (parked bool, err error) {
	s, _ := ctx.Value(sourceKey{}).(*Source)
	if s == nil {
		return false, nil
	}
	if _, known := db.sources.known.Load(s); known {
		return false, nil
	}
	if s.Unparked != "" {
		if parked, err = db.parked(ctx, q, s.Unparked); parked || err != nil {
			return parked, err
		}
	}
	db.Blocked() // where no forwarder asks, those that have ended are forgotten when another begins
	db.sources.known.Store(s, nil)
	return false, nil
}

// parked says whether anything of a topic is in the park.
func (db *DB) parked(ctx context.Context, q drive.Querier, topic string) (parked bool, err error) {
	park, err := db.Park()
	if err != nil {
		return false, nil // its name would be too long, so there is none
	}
	var there, mayRead bool
	err = drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&there, &mayRead) },
		sqltext.ParkSeen, park.Render("{outbox}"))
	if err == nil && there && !mayRead {
		// Cause: a subscriber without Park runs under a role that may not read the tables of parked keys.
		// Cure: grant it what the reader of schema.Roles has, on those tables.
		db.logger.Error("cannot see whether keys of this consumer group are parked: if some are, messages overtake them: "+
			"grant the role SELECT on the table", errParkHidden, watermill.LogFields{
			"table": park.Render("{outbox}"), "parked_topic": topic,
		})
	}
	if err != nil || !there || !mayRead {
		return false, err
	}
	err = drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&parked) },
		park.Render(sqltext.AnyParked), topic)
	return parked, err
}

// Cause: a role may not read the tables of parked keys.
// Cure: grant it what the reader of schema.Roles has, on those tables.
var errParkHidden = errors.New("the role may not read the tables of parked keys")

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
