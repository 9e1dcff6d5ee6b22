package integration_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/meter"
	"github.com/millrace-go/watermill-outbox/observe"
)

// witness is an observer of everything a forwarder does.
type witness struct {
	mu      sync.Mutex
	starts  []observe.PublishStart
	ends    []observe.PublishEnd
	dead    []observe.MessageDead
	paused  []observe.TopicPaused
	resumed []observe.TopicResumed
	reads   []meter.ReadEnd
	settled []meter.SettleEnd
	cleaned []meter.CleanEnd
	owned   []meter.LanesOwned
}

func record[T any](w *witness, list *[]T, event T) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*list = append(*list, event)
}

// toldSoFar returns the events recorded so far.
func toldSoFar[T any](w *witness, list *[]T) []T {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]T(nil), *list...)
}

type traceKey struct{}

// PublishStart changes context and metadata like a tracer.
func (w *witness) PublishStart(ctx context.Context, start observe.PublishStart) context.Context {
	record(w, &w.starts, start)
	start.Message.Metadata["trace"] += "<" + start.Message.UUID
	return context.WithValue(ctx, traceKey{}, start.Message.UUID)
}

func (w *witness) PublishEnd(ctx context.Context, end observe.PublishEnd) {
	if ctx.Value(traceKey{}) == end.UUID {
		record(w, &w.ends, end)
	}
}
func (w *witness) MessageDead(_ context.Context, d observe.MessageDead)   { record(w, &w.dead, d) }
func (w *witness) TopicPaused(_ context.Context, p observe.TopicPaused)   { record(w, &w.paused, p) }
func (w *witness) TopicResumed(_ context.Context, r observe.TopicResumed) { record(w, &w.resumed, r) }
func (w *witness) ReadEnd(_ context.Context, end meter.ReadEnd)           { record(w, &w.reads, end) }
func (w *witness) SettleEnd(_ context.Context, end meter.SettleEnd)       { record(w, &w.settled, end) }
func (w *witness) CleanEnd(_ context.Context, end meter.CleanEnd)         { record(w, &w.cleaned, end) }
func (w *witness) LanesOwned(_ context.Context, owned meter.LanesOwned)   { record(w, &w.owned, owned) }

// TestForwarderIsObserved: observers of the handle are notified of each publish and its verdict, of deaths, pauses and
// statements. Context values and metadata set by an observer reach the publisher, and each attempt starts with the
// stored metadata.
func TestForwarderIsObserved(t *testing.T) {
	parallel(t)
	eyes := &witness{}
	h := newPgxHandle(t, newMigratedDatabase(t)).seenBy(t, rudeObserver{func() {
		panic("user code")
	}}, eyes, &settledCounter{})
	var mu sync.Mutex
	var traces []string
	cfg := classifyingConfig()
	cfg.CleanInterval, cfg.Retention = 20*time.Millisecond, time.Minute
	h.publish(t, "orders", "", "refused") // the clean-up skips a row that is not committed yet, for an hour
	w := startForwarderOn(t, h, cfg, func(topic string, msg *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if msg.Context().Value(traceKey{}) != msg.UUID {
			return errMalformed
		}
		traces = append(traces, msg.Metadata["trace"])
		switch {
		case topic == "down" && len(toldSoFar(eyes, &eyes.paused)) < 2:
			return errDown
		case string(msg.Payload) == "malformed":
			return errMalformed
		case string(msg.Payload) == "refused" && len(traces) < 3:
			return errRefused
		}
		return nil
	})
	w.arrives(t, "refused")
	w.publish(t, "orders", "", "malformed")
	w.publish(t, "down", "", "waits")
	w.arrives(t, "waits")
	eventually(t, func() bool { return len(toldSoFar(eyes, &eyes.resumed)) == 1 && len(toldSoFar(eyes, &eyes.dead)) == 1 },
		"the observer is notified")
	w.idle(t)
	h.exec(t, "update outbox set published_at = published_at - interval '1 hour' where published_at is not null")
	eventually(t, func() bool { return outboxed(t, h) == 1 }, "the messages are cleaned")
	require.NoError(t, w.Forwarder.Close())

	uuid := map[string]string{} // by payload
	for _, s := range toldSoFar(eyes, &eyes.starts) {
		uuid[string(s.Message.Payload)] = s.Message.UUID
		assert.Equal(t, h.name+" default", s.DB+" "+s.Scope)
		assert.WithinDuration(t, time.Now(), s.EnqueuedAt, patience)
	}
	for _, trace := range traces {
		assert.Contains(t, []string{"<" + uuid["refused"], "<" + uuid["malformed"], "<" + uuid["waits"]}, trace)
	}
	type end struct {
		uuid, topic, verdict string
		attempt              int
		err                  error
	}
	var ends []end
	for _, e := range toldSoFar(eyes, &eyes.ends) {
		ends = append(ends, end{e.UUID, e.Topic, e.Verdict, e.Attempt, e.Err})
		assert.Positive(t, e.Duration)
		assert.Positive(t, e.ID)
	}
	assert.Subset(t, ends, []end{
		{uuid["refused"], "orders", "retry", 1, errRefused}, {uuid["refused"], "orders", "retry", 2, errRefused},
		{uuid["refused"], "orders", "", 3, nil},
		{uuid["malformed"], "orders", "permanent", 1, errMalformed},
		{uuid["waits"], "down", "unavailable", 1, errDown}, {uuid["waits"], "down", "", 1, nil},
	})
	dead := toldSoFar(eyes, &eyes.dead)[0]
	dead.ID = 0
	assert.Equal(t, observe.MessageDead{
		DB: h.name, Scope: "default", Topic: "orders", UUID: uuid["malformed"], Attempts: 1, Err: errMalformed,
	}, dead)

	paused, resumed := toldSoFar(eyes, &eyes.paused), toldSoFar(eyes, &eyes.resumed)[0]
	wait := time.Duration(0)
	for n, p := range paused {
		wait += p.Wait
		assert.Equal(t, observe.TopicPaused{
			DB: h.name, Scope: "default", Topic: "down", Failures: n + 1, Wait: p.Wait, Err: errDown,
		}, p)
	}
	assert.GreaterOrEqual(t, len(paused), 2)
	assert.GreaterOrEqual(t, resumed.Duration, wait)
	assert.Equal(t, observe.TopicResumed{DB: h.name, Scope: "default", Topic: "down", Duration: resumed.Duration}, resumed)

	var sum meter.SettleEnd
	for _, s := range toldSoFar(eyes, &eyes.settled) {
		sum.Done, sum.Failed, sum.Dead = sum.Done+s.Done, sum.Failed+s.Failed, sum.Dead+s.Dead
	}
	assert.Equal(t, meter.SettleEnd{Done: 2, Failed: 3, Dead: 1}, sum)
	rows := 0
	for _, r := range toldSoFar(eyes, &eyes.reads) {
		rows += r.Rows
	}
	assert.GreaterOrEqual(t, rows, 3)
	assert.Equal(t, int64(2), toldSoFar(eyes, &eyes.cleaned)[0].Rows)
	assert.Equal(t, "outbox", toldSoFar(eyes, &eyes.cleaned)[0].Table)
	assert.Equal(t, []meter.LanesOwned{{DB: h.name, Scope: "default", Lanes: 64}, {DB: h.name, Scope: "default"}},
		toldSoFar(eyes, &eyes.owned))
	assert.Positive(t, w.log.count("observer panicked"))
}

// TestSubscriberIsObserved: a delivery counts as a publish, which ends with the ack.
func TestSubscriberIsObserved(t *testing.T) {
	parallel(t)
	eyes := &witness{}
	h := newPgxHandle(t, newMigratedDatabase(t)).seenBy(t, eyes)
	s := newSubscriber(t, h, quickConfig())
	messages, err := s.Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	h.publish(t, "orders", "", "delivered")
	first := receive(t, messages)
	assert.Equal(t, "<"+first.UUID, first.Metadata["trace"])
	assert.Equal(t, first.UUID, first.Context().Value(traceKey{}))
	first.Nack()
	receive(t, messages).Ack()
	eventually(t, func() bool { return len(toldSoFar(eyes, &eyes.ends)) == 2 }, "both deliveries are observed")
	ends := toldSoFar(eyes, &eyes.ends)
	require.ErrorIs(t, ends[0].Err, outbox.ErrNacked)
	assert.Equal(t, "retry", ends[0].Verdict)
	assert.NoError(t, ends[1].Err)
	assert.Equal(t, "subscriber:orders", ends[1].Scope)
}
