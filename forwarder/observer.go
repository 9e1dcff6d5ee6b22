package forwarder

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// Observer is told of every publish. It may also implement the other interfaces of this file. PublishStart and
// PublishEnd are called by the goroutines that publish, and are a part of the publish; the other methods are called one after the
// other, and may be left out while one of them blocks. A panic is logged and ends nothing else. Payloads are not theirs to log.
type Observer interface {
	// PublishStart is called before a message is handed to its publisher. The context returned becomes the
	// message's, and is passed to PublishEnd.
	PublishStart(ctx context.Context, msg *message.Message, topic string) context.Context
	// PublishEnd is called with what became of it.
	PublishEnd(ctx context.Context, end PublishEnd)
}

// PublishEnd says what became of a publish. Fields may be added.
type PublishEnd struct {
	DB, Scope, Topic string
	ID               int64  // the row
	UUID             string // of the message
	Attempt          int    // counting from 1
	EnqueuedAt       time.Time
	Took             time.Duration
	Err              error
	Verdict          Verdict // if Err is not nil
}

// ReadObserver is told of every read of the outbox.
type ReadObserver interface{ ReadEnd(ReadEnd) }

// ReadEnd says how a read went. Fields may be added.
type ReadEnd struct {
	DB, Scope string
	Rows      int // new in memory
	Took      time.Duration
	Err       error
}

// SettleObserver is told of every batch of results that was written back.
type SettleObserver interface{ SettleEnd(SettleEnd) }

// SettleEnd says how a batch of results went. Fields may be added.
type SettleEnd struct {
	DB, Scope               string
	Published, Failed, Dead int
	Took                    time.Duration
	Err                     error // it will be tried again
}

// DeadObserver is told of messages that will not be tried again.
type DeadObserver interface{ MessageDead(MessageDead) }

// MessageDead names a dead message. Fields may be added.
type MessageDead struct {
	DB, Scope, Topic, UUID string
	ID                     int64
	Attempts               int
	Err                    error
}

// TopicObserver is told when topics are paused and resumed.
type TopicObserver interface {
	TopicPaused(db, scope, topic string, failures int, wait time.Duration, err error)
	TopicResumed(db, scope, topic string)
}

// LaneObserver is told how many of the 64 lanes the forwarder owns, whenever that changes.
type LaneObserver interface {
	LanesOwned(db, scope string, lanes int)
}

// CleanupObserver is told how many published messages were deleted past their retention.
type CleanupObserver interface {
	CleanedUp(db, scope string, rows int)
}

// observers reports to the user's observer and logger. It never waits for them.
type observers struct {
	db, scope string
	base      Observer // nil = none
	logger    watermill.LoggerAdapter
	reports   *reporter
}

// paused logs that a topic is unavailable if it was not said lately.
func (o observers) paused(topic string, failures int, wait time.Duration, err error, say bool) {
	fields := watermill.LogFields{"topic": topic, "failures": failures, "wait": wait.String()}
	switch {
	case failures == 1:
		o.logger.Error("Topic is unavailable and paused; its messages wait and are charged nothing", err, fields)
	case say:
		o.logger.Error("Topic is still unavailable; its messages wait and are charged nothing", err, fields)
	default:
		o.debug("Topic is still unavailable", fields, err)
	}
	if t, ok := o.base.(TopicObserver); ok {
		o.reports.tell(func() { t.TopicPaused(o.db, o.scope, topic, failures, wait, err) })
	}
}

func (o observers) resumed(topic string) {
	o.logger.Info("Topic is available again", watermill.LogFields{"topic": topic})
	if t, ok := o.base.(TopicObserver); ok {
		o.reports.tell(func() { t.TopicResumed(o.db, o.scope, topic) })
	}
}

// debug logs an error that is no news. Its text is the user's code as well.
func (o observers) debug(msg string, fields watermill.LogFields, err error) {
	o.reports.tell(func() { o.reports.logger.Debug(msg, fields.Add(watermill.LogFields{"err": err.Error()})) })
}

// rejected logs the first failure of a topic in a while as an error, and others at debug.
func (o observers) rejected(f failure, first bool) {
	fields := watermill.LogFields{"id": f.row.id, "uuid": f.row.uuid, "topic": f.row.topic, "attempts": f.attempts, "wait": f.delay.String()}
	if first {
		o.logger.Error("A message was rejected and will be tried again; more of its topic are not reported for a minute", f.err, fields)
	} else {
		o.debug("A message was rejected and will be tried again", fields, f.err)
	}
}

func (o observers) swept(id int64) {
	o.logger.Info("A pending message was found that had been read before: somebody changed its row", watermill.LogFields{"id": id})
}

func (o observers) dead(f failure) {
	o.logger.Error("Message is dead: it will not be tried again until somebody requeues it", f.err, watermill.LogFields{
		"id": f.row.id, "uuid": f.row.uuid, "topic": f.row.topic, "attempts": f.attempts})
	if d, ok := o.base.(DeadObserver); ok {
		o.reports.tell(func() {
			d.MessageDead(MessageDead{o.db, o.scope, f.row.topic, f.row.uuid, f.row.id, f.attempts, f.err})
		})
	}
}

func (o observers) lanes(n int) {
	o.logger.Info("Lanes owned", watermill.LogFields{"lanes": n})
	if l, ok := o.base.(LaneObserver); ok {
		o.reports.tell(func() { l.LanesOwned(o.db, o.scope, n) })
	}
}

func (o observers) read(e ReadEnd) {
	if r, ok := o.base.(ReadObserver); ok {
		e.DB, e.Scope = o.db, o.scope
		o.reports.tell(func() { r.ReadEnd(e) })
	}
}

func (o observers) settle(e SettleEnd) {
	if s, ok := o.base.(SettleObserver); ok {
		e.DB, e.Scope = o.db, o.scope
		o.reports.tell(func() { s.SettleEnd(e) })
	}
}

func (o observers) cleanedUp(rows int) {
	if c, ok := o.base.(CleanupObserver); ok && rows > 0 {
		o.reports.tell(func() { c.CleanedUp(o.db, o.scope, rows) })
	}
}
