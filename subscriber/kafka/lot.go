package kafka

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/schema"
)

const (
	// parkTimeout bounds each statement of the park.
	parkTimeout = 10 * time.Second
	undefined   = "42P01" // SQLSTATE of a table that does not exist
)

// lot is where a subscription parks. It is safe for concurrent use.
type lot struct {
	*subscription
	cfg   ParkConfig
	db    *outbox.DB
	pub   *outbox.Publisher
	scope string // topic of the rows: other groups park in the same tables

	keys    atomic.Int64 // parked, of all partitions
	keyless atomic.Int64 // messages without a key: at the last look, and since
	looks   oneLook
	wake    chan struct{}
	running sync.WaitGroup
}

// pile is what is parked of a key.
type pile struct {
	oldest int64 // row
	rows   int64
}

// newLot returns nil without a ParkConfig.DB.
func newLot(s *subscription) (*lot, error) {
	if s.cfg.Park.DB == nil {
		return nil, nil
	}
	db, err := s.cfg.Park.handle()
	if err != nil {
		return nil, err
	}
	pub, err := outbox.NewPublisher(db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, s.logger)
	if err != nil {
		return nil, err
	}
	l := &lot{
		subscription: s, cfg: s.cfg.Park, db: db, pub: pub, scope: core.ParkTopic(s.cfg.ConsumerGroup, s.topic),
		wake: make(chan struct{}, 1),
	}
	l.looks.piles = l.pilesOf
	return l, nil
}

// piles returns all that is parked, by parkedKey; that of "" are the messages without one.
func (l *lot) piles(ctx context.Context) (map[string]pile, error) {
	piles, err := l.ask(ctx, sqltext.Parked, l.scope)
	if err == nil {
		l.keyless.Store(piles[""].rows)
	}
	return piles, err
}

// pilesOf is piles for some keys, and for messages without one if there are any. It counts little more than drainRows.
func (l *lot) pilesOf(ctx context.Context, keys []string) (map[string]pile, error) {
	keyless := l.keyless.Load() > 0
	if keyless {
		keys = append(keys, "")
	}
	piles, err := l.ask(ctx, sqltext.ParkedOf, l.scope, keys, int64(drainRows+1))
	if err == nil && keyless {
		l.keyless.Store(piles[""].rows)
	}
	return piles, err
}

func (l *lot) ask(ctx context.Context, statement string, args ...any) (map[string]pile, error) {
	ctx, cancel := context.WithTimeout(ctx, parkTimeout)
	defer cancel()
	db := (*core.DB)(l.db)
	rows, err := db.Query(ctx, db.Render(statement), args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	piles := map[string]pile{}
	for rows.Next() {
		var key string
		var p pile
		if err := rows.Scan(&key, &p.oldest, &p.rows); err != nil {
			return nil, err
		}
		piles[key] = p
	}
	return piles, rows.Err()
}

// load is piles for a claim that begins. It creates the tables if they are missing.
func (l *lot) load(ctx context.Context) (map[string]pile, error) {
	piles, err := l.piles(ctx)
	if text.SQLState(err) == undefined {
		_, err = schema.Migrate(ctx, l.db, schema.MigrateConfig{SkipConcurrent: true})
	}
	if len(piles) > 0 {
		l.rouse()
	}
	return piles, err
}

// room says whether one more may be parked.
func (l *lot) room() bool { return l.keys.Load()+l.keyless.Load() < int64(l.cfg.MaxKeys) }

// take counts one more, if there is room.
func (l *lot) take(key string) bool {
	for l.room() {
		if n := l.keys.Load(); l.keys.CompareAndSwap(n, n+1) {
			if key == "" {
				l.keys.Add(-1)
				l.keyless.Add(1)
			}
			return true
		}
	}
	return false
}

// store parks a record. If it fails, it may have happened all the same.
func (l *lot) store(ctx context.Context, rec record, key string) error {
	payload, err := encode(rec)
	if err != nil {
		return err
	}
	msg := message.NewMessage(parkedUUID(l.subscription.cfg.ConsumerGroup, rec.msg), payload)
	outbox.SetKey(msg, key)
	// The store ends by itself: cut off in the middle it would only be less known what became of it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), parkTimeout)
	defer cancel()
	if err := l.pub.PublishContext(ctx, l.scope, msg); err != nil {
		return err
	}
	l.rouse()
	return nil
}

// rouse has what is parked delivered.
func (l *lot) rouse() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// parkedOf returns the piles of one partition.
func parkedOf(partition int32, piles map[string]pile) map[string]pile {
	prefix := parkedKey(partition, "x")
	prefix = strings.TrimSuffix(prefix, "x")
	of := map[string]pile{}
	for key, p := range piles {
		if strings.HasPrefix(key, prefix) {
			of[key] = p
		}
	}
	return of
}

func (l *lot) tellStore(err error, offset int64) {
	if l.lines.Due("park") {
		// Cause: the database did not take a message that is to be parked.
		// Cure: check the database; the message is blocked and parked later.
		l.logger.Error("could not park a message: it is retried", err, watermill.LogFields{"offset": offset})
	}
}
