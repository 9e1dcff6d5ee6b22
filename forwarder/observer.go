package forwarder

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
)

// Observer is told of every publish. It may also implement the other interfaces of this file. All
// methods are called from several goroutines and must not block; payloads are not theirs to log.
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

// observers calls the user's observer and writes the log. All but publishStart and what it returns run in the reporter.
type observers struct {
	db, scope string
	base      Observer // nil = none
	logger    watermill.LoggerAdapter
}

// publishStart tells the observer of a call, if there is one. What it returns is to be called at the end.
func (o observers) publishStart(msg *message.Message, c *board.Call, broken func(error)) (end func(board.Result)) {
	if o.base == nil {
		return func(board.Result) {}
	}
	r, begun, ctx := c.Row, time.Now(), msg.Context()
	guard(func() {
		if with := o.base.PublishStart(ctx, msg, r.Topic); with != nil {
			ctx = with
		}
	}, broken)
	msg.SetContext(ctx)
	return func(res board.Result) {
		end := PublishEnd{
			DB: o.db, Scope: o.scope, Topic: r.Topic, ID: r.ID, UUID: r.UUID, Attempt: c.Attempt,
			EnqueuedAt: r.CreatedAt, Took: time.Since(begun), Err: res.Err,
		}
		switch res.Verdict {
		case board.Unavailable:
			end.Verdict = Unavailable
		case board.Permanent:
			end.Verdict = Permanent
		}
		guard(func() { o.base.PublishEnd(ctx, end) }, broken)
	}
}

// report says what the board reports.
func (o observers) report(list []board.Report) {
	for _, r := range list {
		fields := watermill.LogFields{"topic": r.Topic}
		switch r.Kind {
		case board.TopicPaused:
			o.paused(r, fields.Add(watermill.LogFields{"failures": r.Failures, "wait": r.Wait.String()}))
		case board.TopicResumed:
			o.logger.Info("Topic is available again", fields)
			if t, ok := o.base.(TopicObserver); ok {
				t.TopicResumed(o.db, o.scope, r.Topic)
			}
		case board.TopicJammed:
			o.logger.Error("As many publishes of the topic hang as Concurrency allows; none is started until some return", ErrPublishTimeout,
				fields.Add(watermill.LogFields{"publishes": r.Failures}))
		case board.RowRejected:
			o.rejected(r, fields.Add(watermill.LogFields{"id": r.ID, "uuid": r.UUID, "attempts": r.Attempts, "wait": r.Wait.String()}))
		case board.RowDead:
			o.logger.Error("Message is dead: it will not be tried again until somebody requeues it", r.Err,
				fields.Add(watermill.LogFields{"id": r.ID, "uuid": r.UUID, "attempts": r.Attempts}))
			if d, ok := o.base.(DeadObserver); ok {
				d.MessageDead(MessageDead{o.db, o.scope, r.Topic, r.UUID, r.ID, r.Attempts, r.Err})
			}
		case board.StrayFound:
			o.logger.Info("A pending message was found that had been read before: somebody changed its row", watermill.LogFields{"id": r.ID})
		case board.Shadowed:
			o.logger.Info("More messages wait than can be kept in mind; the lane is read again when there is room", watermill.LogFields{"lane": r.Lane})
		}
	}
}

// paused logs the first failure as an error, and what repeats it each minute as well.
func (o observers) paused(r board.Report, fields watermill.LogFields) {
	if r.Failures == 1 || r.Repeated {
		o.logger.Error("Topic is unavailable and paused; its messages wait and are charged nothing", r.Err, fields)
	} else {
		o.logger.Debug("Topic is still unavailable", fields.Add(watermill.LogFields{"err": r.Err.Error()}))
	}
	if t, ok := o.base.(TopicObserver); ok && !r.Repeated {
		t.TopicPaused(o.db, o.scope, r.Topic, r.Failures, r.Wait, r.Err)
	}
}

// rejected logs the first failure of a topic in a while as an error, and others at debug.
func (o observers) rejected(r board.Report, fields watermill.LogFields) {
	if r.Repeated {
		o.logger.Debug("A message was rejected and will be tried again", fields.Add(watermill.LogFields{"err": r.Err.Error()}))
	} else {
		o.logger.Error("A message was rejected and will be tried again; more of its topic are not reported for a minute", r.Err, fields)
	}
}

func (o observers) lanes(n int) {
	o.logger.Info("Lanes owned", watermill.LogFields{"lanes": n})
	if l, ok := o.base.(LaneObserver); ok {
		l.LanesOwned(o.db, o.scope, n)
	}
}

func (o observers) read(e ReadEnd) {
	if r, ok := o.base.(ReadObserver); ok {
		e.DB, e.Scope = o.db, o.scope
		r.ReadEnd(e)
	}
}

func (o observers) settle(e SettleEnd) {
	if s, ok := o.base.(SettleObserver); ok {
		e.DB, e.Scope = o.db, o.scope
		s.SettleEnd(e)
	}
}

func (o observers) cleanedUp(rows int) {
	if c, ok := o.base.(CleanupObserver); ok && rows > 0 {
		c.CleanedUp(o.db, o.scope, rows)
	}
}
