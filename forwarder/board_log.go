package forwarder

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/observe"
)

// boardLog says what the board reports, to the log and to observers. It is the reporter's.
type boardLog struct {
	logger   watermill.LoggerAdapter
	obs      *observers
	since    map[string]time.Time // of topics that pause
	pausedBy map[string]time.Time // of topics that an operator has paused
}

func (l *boardLog) report(now time.Time, list []board.Report) {
	for _, r := range list {
		fields := watermill.LogFields{"topic": r.Topic}
		if r.ByOperator {
			l.operator(now, r, fields)
			continue
		}
		switch r.Kind {
		case board.TopicPaused:
			l.paused(now, r, fields.Add(watermill.LogFields{"failures": r.Failures, "wait": r.Wait.String()}))
		case board.TopicJammed:
			l.jammed(now, r, fields.Add(watermill.LogFields{"publishes": r.Failures}))
		case board.TopicResumed:
			l.logger.Info("topic available again", fields)
			l.obs.resumed(observe.TopicResumed{Topic: r.Topic, Duration: now.Sub(l.begin(now, r.Topic))})
			delete(l.since, r.Topic)
		case board.RowRejected:
			l.rejected(r, fields.Add(watermill.LogFields{"id": r.ID, "uuid": r.UUID, "attempts": r.Attempts, "wait": r.Wait.String()}))
		case board.RowDead:
			l.logger.Error("message died: requeue it after mending the cause", r.Err,
				fields.Add(watermill.LogFields{"id": r.ID, "uuid": r.UUID, "attempts": r.Attempts}))
			l.obs.dead(observe.MessageDead{Topic: r.Topic, UUID: r.UUID, ID: r.ID, Attempts: r.Attempts, Err: r.Err})
		case board.StrayFound:
			l.logger.Info("pending message read before: its row was changed by hand", watermill.LogFields{"id": r.ID})
		case board.Shadowed:
			l.logger.Info("parked-message limit reached: the lane is read again when there is room", watermill.LogFields{"lane": r.Lane})
		}
	}
}

// operator says that somebody has paused or resumed a topic by hand.
func (l *boardLog) operator(now time.Time, r board.Report, fields watermill.LogFields) {
	if r.Kind == board.TopicPaused {
		l.logger.Info("topic paused by an operator: its messages wait", fields)
		l.pausedBy[r.Topic] = now
		l.obs.paused(observe.TopicPaused{Topic: r.Topic, ByOperator: true})
		return
	}
	l.logger.Info("topic resumed by an operator", fields)
	l.obs.resumed(observe.TopicResumed{Topic: r.Topic, Duration: now.Sub(l.pausedBy[r.Topic]), ByOperator: true})
	delete(l.pausedBy, r.Topic)
}

// begin returns since when a topic pauses.
func (l *boardLog) begin(now time.Time, topic string) time.Time {
	if _, ok := l.since[topic]; !ok {
		l.since[topic] = now
	}
	return l.since[topic]
}

// paused logs the first failure as an error, and what repeats it each minute as well.
func (l *boardLog) paused(now time.Time, r board.Report, fields watermill.LogFields) {
	text := "topic unavailable: paused: its messages wait, uncharged"
	if r.Guessed {
		text = "Every publish of the topic fails, for a reason that nobody knows: it is paused; its messages wait and are charged nothing"
	}
	if r.Failures == 1 || r.Repeated {
		l.logger.Error(text, r.Err, fields)
	} else {
		l.logger.Debug("topic still unavailable", fields.Add(watermill.LogFields{"err": r.Err.Error()}))
	}
	if l.begin(now, r.Topic); !r.Repeated {
		l.obs.paused(observe.TopicPaused{Topic: r.Topic, Failures: r.Failures, Wait: r.Wait, Err: r.Err})
	}
}

func (l *boardLog) jammed(now time.Time, r board.Report, fields watermill.LogFields) {
	l.logger.Error("all publish slots of the topic are hung: none is started until some return", ErrPublishTimeout, fields)
	if l.begin(now, r.Topic); !r.Repeated {
		l.obs.paused(observe.TopicPaused{Topic: r.Topic, Failures: r.Failures, Err: ErrPublishTimeout})
	}
}

// rejected logs the first failure of a topic in a while as an error, and others at debug.
func (l *boardLog) rejected(r board.Report, fields watermill.LogFields) {
	if r.Repeated {
		l.logger.Debug("publish failed: retrying", fields.Add(watermill.LogFields{"err": r.Err.Error()}))
	} else {
		l.logger.Error("publish failed: retrying: more of the topic are logged at debug level for a minute", r.Err, fields)
	}
}
