package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// checkQueue reports messages that dispatchers leave behind in the queue. Dispatchers have no rows, so it cannot see
// which of them are alive and how long each may handle a message.
func (e *doctorRun) checkQueue(ctx context.Context) error {
	var topic string
	unhandled := map[string]bool{}
	var n, oldest float64
	refusing := e.obstaclesOn("{queue}")
	err := e.rows(ctx, []any{&topic, &n, &oldest}, func() {
		unhandled[topic] = true
		evidence := fmt.Sprintf("%s due, the oldest for %s, and no message of this topic was handled recently",
			inQueue(int64(n), topic, "is", "are"), span(seconds(oldest)))
		cure := "give a queue.Dispatcher, Subscriber or Group a handler for this topic. Until then its messages wait, and " +
			"no attempt is counted"
		if len(refusing) > 0 {
			evidence += "; the database may refuse to update them, because of " + strings.Join(refusing, ", ")
			cure = "look for \"message refused by the database\" in the log of a dispatcher, and fix or drop the object that " +
				"it " +
				"names. If there is no such line, " + cure
		}
		e.findOf(Queue, topic, "queue_unhandled", max(Warning, byAge(seconds(oldest))), evidence, cure)
	}, sqltext.QueueUnhandled)
	if err != nil {
		return err
	}
	var waiting, abandoned, crashed int64
	var waits, since float64
	var crashes int
	var source, id string
	return e.rows(ctx, []any{&topic, &waiting, &waits, &abandoned, &since, &crashed, &crashes, &source, &id}, func() {
		switch waited, left := seconds(waits), seconds(since); {
		case abandoned > 0:
			// The row of a handler's transaction is locked, so no dispatcher renews its lease or takes it back. That is
			// harmless, however long it lasts.
			e.findOf(Queue, topic, "queue_abandoned", Warning,
				fmt.Sprintf("%s an owner whose lease expired, the first %s ago: no dispatcher that handles the topic "+
					"is running, or its handler has kept a transaction open since",
					inQueue(abandoned, topic, "has", "have"), span(left)),
				"if none is running, start a queue.Dispatcher, Subscriber or Group that handles it, which takes over abandoned "+
					"messages; if one is running, find out what its handler waits for")
		case e.pausedInQueue(topic) || unhandled[topic]: // the finding about the topic covers it
		case waiting > 0 && waited > slow:
			e.findOf(Queue, topic, "queue_waits", byAge(waited),
				fmt.Sprintf("%s due, the oldest for %s", inQueue(waiting, topic, "is", "are"), span(waited)),
				"check that a dispatcher with a handler for this topic is running; if so, raise its Concurrency, "+
					"or run more of them")
		}
		if crashed > 0 {
			worst := joinID(source, id)
			e.findOf(Queue, topic, "queue_crashes", Warning,
				fmt.Sprintf("%s another attempt because the lease expired during handling: the process died, or could not renew "+
					"it; message %s has done so %d times", inQueue(crashed, topic, "waits for", "wait for"), worst, crashes),
				"find in the logs what ends these processes; if they only paused, set DispatcherConfig.LeaseTTL to longer than "+
					"the pause; if that message does, discard it"+
					e.command("queue discard", shell(worst), "--state failing --reason WHY"))
		}
	}, sqltext.DoctorQueue, int64(sampleSize), leftFor.Seconds())
}

// pausedInQueue reports whether an operator has paused a topic of the queue.
func (e *doctorRun) pausedInQueue(topic string) bool {
	return e.stats != nil && slices.ContainsFunc(e.stats.Queue, func(t TopicStats) bool {
		return t.Topic == topic && t.Paused
	})
}

func inQueue(n int64, topic, one, more string) string {
	return messages(Count{N: n}, ofTopic(topic)+" in the queue", one, more)
}

// leftFor is how long ago a lease must have expired before its message counts as abandoned: dispatchers check every
// second.
const leftFor = 30 * time.Second
