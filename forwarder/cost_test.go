package forwarder

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/coordinator"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// countedLock is an engine's lock that counts its acquisitions.
type countedLock struct {
	sync.Mutex
	taken int
}

func (l *countedLock) Lock() {
	l.Mutex.Lock()
	l.taken++
}

// messages makes an engine publish and settle batches of messages, and counts how often its lock was taken.
type messages struct {
	e    *engine
	lock *countedLock
	id   int64
}

const messagesPerRead = 4096

func newMessages(t testing.TB) *messages {
	send := func(*callContext, core.Delivery, *message.Message) error { return nil }
	e, err := newEngine(context.Background(), withoutServer(t), Config{LeaseTTL: time.Hour}, send, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := &messages{e: e, lock: &countedLock{}}
	e.mu = m.lock
	var all []dispatch.Assignment
	for n := range int16(dispatch.Lanes) {
		all = append(all, dispatch.Assignment{Lane: n, Epoch: 1})
	}
	e.step(func(now time.Time, m *coordinator.Coordinator) { starts(now, m, all...) })
	return m
}

// rows returns the rows of one read.
func (m *messages) rows() (list []*dispatch.Row) {
	rows := make([]dispatch.Row, messagesPerRead)
	for i := range rows {
		m.id++
		rows[i] = dispatch.Row{
			ID: m.id, Topic: "orders",
			Assignment: dispatch.Assignment{Lane: int16(i * dispatch.Lanes / messagesPerRead), Epoch: 1},
			Metadata:   []byte("{}"), CreatedAt: time.Now(),
		}
		list = append(list, &rows[i])
	}
	return list
}

// publish returns when a read's messages are published and settled.
func (m *messages) publish(rows []*dispatch.Row) {
	m.e.step(func(now time.Time, m *coordinator.Coordinator) { read(now, m, rows) })
	m.e.publishing.Wait()
	var published []*dispatch.Row
	m.e.step(func(_ time.Time, m *coordinator.Coordinator) { published, _ = m.Results(maxSettle) })
	m.e.settled(published, nil)
}

// TestWhatAMessageCosts limits the allocations per published and settled message, and how often the engine's lock is
// taken: all workers contend for it.
func TestWhatAMessageCosts(t *testing.T) {
	const reads, mostAllocations, mostLocks = 8, 8.1, 1.05
	m := newMessages(t)
	m.publish(m.rows()) // maps grow
	var allocations uint64
	m.lock.taken = 0
	for range reads {
		rows := m.rows()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		m.publish(rows)
		runtime.ReadMemStats(&after)
		allocations += after.Mallocs - before.Mallocs
	}
	each := func(n float64) float64 { return n / (reads * messagesPerRead) }
	t.Logf("%.3f allocations and %.3f locks per message", each(float64(allocations)), each(float64(m.lock.taken)))
	if n := each(float64(allocations)); n > mostAllocations {
		t.Errorf("%.3f allocations per message, want at most %.1f", n, mostAllocations)
	}
	if n := each(float64(m.lock.taken)); n > mostLocks {
		t.Errorf("the lock is taken %.3f times per message, want at most %.2f", n, mostLocks)
	}
}

func BenchmarkMessage(b *testing.B) {
	m := newMessages(b)
	b.ReportAllocs()
	for n := 0; n < b.N; n += messagesPerRead {
		b.StopTimer()
		rows := m.rows()
		b.StartTimer()
		m.publish(rows)
	}
}
