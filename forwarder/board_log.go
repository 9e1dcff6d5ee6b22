package forwarder

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/observe"
)

// boardLog passes reports of the board to the log and the observers. It belongs to the reporter.
type boardLog struct {
	logger   watermill.LoggerAdapter
	obs      *observers
	since    map[string]time.Time // of paused topics
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
			l.rejected(r, fields.Add(watermill.LogFields{
				"id": r.ID, "uuid": r.UUID, "attempts": r.Attempts, "wait": r.Wait.String(),
			}))
		case board.RowDead:
			// Cause: MaxAttempts and MinDeadAge are reached, or the error is permanent.
			// Cure: see outboxctl errors; then outbox requeue or discard.
			l.logger.Error("message died: fix the cause, then requeue it", r.Err,
				fields.Add(watermill.LogFields{"id": r.ID, "uuid": r.UUID, "attempts": r.Attempts}))
			l.obs.dead(observe.MessageDead{Topic: r.Topic, UUID: r.UUID, ID: r.ID, Attempts: r.Attempts, Err: r.Err})
		case board.OrphanFound:
			l.logger.Info("message became pending again: its row was changed by hand", watermill.LogFields{"id": r.ID})
		case board.TooManyWait:
			l.logger.Info("too many ordering keys wait for paused topics: further keys are not blocked on other topics",
				watermill.LogFields{"lane": r.Lane})
		}
	}
}

// operator logs that a topic was paused or resumed by hand.
func (l *boardLog) operator(now time.Time, r board.Report, fields watermill.LogFields) {
	if r.Kind == board.TopicPaused {
		l.logger.Info("topic paused by an operator: its messages stay pending", fields)
		l.pausedBy[r.Topic] = now
		l.obs.paused(observe.TopicPaused{Topic: r.Topic, ByOperator: true})
		return
	}
	l.logger.Info("topic resumed by an operator", fields)
	l.obs.resumed(observe.TopicResumed{Topic: r.Topic, Duration: now.Sub(l.pausedBy[r.Topic]), ByOperator: true})
	delete(l.pausedBy, r.Topic)
}

// begin returns when the topic's pause began.
func (l *boardLog) begin(now time.Time, topic string) time.Time {
	if _, ok := l.since[topic]; !ok {
		l.since[topic] = now
	}
	return l.since[topic]
}

// paused logs the first failure as an error, and its repetitions once a minute.
func (l *boardLog) paused(now time.Time, r board.Report, fields watermill.LogFields) {
	switch {
	case r.Failures != 1 && !r.Repeated:
		l.logger.Debug("topic still unavailable", fields.Add(watermill.LogFields{"err": r.Err.Error()}))
	case r.Guessed:
		// Cause: five messages in a row failed.
		// Cure: check the broker; use package kafka, nats or amqp, or set Config.Classify.
		l.logger.Error("topic unavailable: all its publishes fail, with unclassified errors: paused, no attempt is "+
			"counted", r.Err, fields)
	default:
		// Cause: the broker is not reached, or lacks the topic.
		// Cure: the topic resumes on its own.
		l.logger.Error("topic unavailable: paused, no attempt is counted", r.Err, fields)
	}
	if l.begin(now, r.Topic); !r.Repeated {
		l.obs.paused(observe.TopicPaused{Topic: r.Topic, Failures: r.Failures, Wait: r.Wait, Err: r.Err})
	}
}

func (l *boardLog) jammed(now time.Time, r board.Report, fields watermill.LogFields) {
	// Cause: Concurrency publishes took longer than PublishTimeout.
	// Cure: check the broker; restart the process if they never return.
	l.logger.Error("all publish slots of the topic hang: nothing more is published to it until some return",
		ErrPublishTimeout, fields)
	if l.begin(now, r.Topic); !r.Repeated {
		l.obs.paused(observe.TopicPaused{Topic: r.Topic, Failures: r.Failures, Err: ErrPublishTimeout})
	}
}

// rejected logs the first failure of a topic in a minute as an error, and others at debug level.
func (l *boardLog) rejected(r board.Report, fields watermill.LogFields) {
	if r.Repeated {
		l.logger.Debug("publish failed: retrying", fields.Add(watermill.LogFields{"err": r.Err.Error()}))
	} else {
		// Cause: the broker or the publisher refused the message.
		// Cure: its key is blocked until it is published or dead.
		l.logger.Error("publish failed: retrying: more failures of the topic are logged at debug level for a "+
			"minute", r.Err, fields)
	}
}
