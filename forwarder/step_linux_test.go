package forwarder

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/coordinator"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// heldLock is an engine's lock that measures how long it is held: in CPU time, because on a busy machine its holder may
// have to wait.
type heldLock struct {
	sync.Mutex
	begun, longest time.Duration
	where          string
}

func (l *heldLock) Lock() {
	l.Mutex.Lock()
	runtime.LockOSThread()
	l.begun = threadTime()
}

func (l *heldLock) Unlock() {
	if took := threadTime() - l.begun; took > l.longest {
		l.longest = took
		if _, file, line, ok := runtime.Caller(3); ok { // the step that released it
			l.where = fmt.Sprintf("%s:%d", file[strings.LastIndexByte(file, '/')+1:], line)
		}
	}
	runtime.UnlockOSThread()
	l.Mutex.Unlock()
}

// threadTime returns how long the calling thread has run; Getrusage has only the resolution of ticks.
func threadTime() time.Duration {
	const clockThreadCPUTime = 3
	var at syscall.Timespec
	if _, _, err := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockThreadCPUTime, uintptr(unsafe.Pointer(&at)),
		0); err != 0 {
		panic(err)
	}
	return time.Duration(at.Nano())
}

// madeUp is a database of messages that are numbered from 1, each in the lane id % dispatch.Lanes. The first held
// messages block their keys, the next behind wait for one of these, and the others are free.
type madeUp struct{ held, behind, free int64 }

func (madeUp) Exec(context.Context, string, ...any) (int64, error) { return 0, nil }

func (m madeUp) Query(_ context.Context, query string, args ...any) (drive.Rows, error) {
	if strings.Contains(query, "AS w(lane, cursor)") {
		return m.blocked(args[0].([]int64), args[1].([]int64), args[2].(int64)), nil
	}
	return m.ready(args[7].([]int64), args[8].([]int64), args[11].(int64)), nil
}

func (m madeUp) blocked(lanes, cursors []int64, limit int64) *madeUpRows {
	var rows madeUpRows
	for i, lane := range lanes {
		for id, n := after(cursors[i], lane), limit; id <= m.held && n > 0; id, n = id+dispatch.Lanes, n-1 {
			rows = append(rows, []any{int16(lane), id, m.key(id), "orders", 3600.0, false})
		}
	}
	return &rows
}

func (m madeUp) ready(marks, limits []int64, stretch int64) *madeUpRows {
	rows := madeUpRows{
		{int16(sqltext.FromHeader), m.all(), "10:10:", "a life", "10 -1 0 -1", []byte(nil), []byte(nil), time.Now(), 0},
	}
	for lane := range int64(dispatch.Lanes) {
		id := after(max(marks[lane], m.held), lane)
		for n := limits[lane]; id <= min(m.all(), marks[lane]+stretch) && n > 0; id, n = id+dispatch.Lanes, n-1 {
			rows = append(rows, []any{
				sqltext.FromReady + int16(lane), id, "uuid", "orders", m.key(id), []byte("{}"), []byte("{}"), time.Now(), 0,
			})
		}
	}
	return &rows
}

func (m madeUp) all() int64 { return m.held + m.behind + m.free }

func (m madeUp) key(id int64) string {
	if id > m.held && id <= m.held+m.behind {
		id -= m.held
	}
	return fmt.Sprint("key-", id)
}

// after returns the first number of a lane above an id.
func after(id, lane int64) int64 {
	if next := id - id%dispatch.Lanes + lane; next > id {
		return next
	}
	return id - id%dispatch.Lanes + lane + dispatch.Lanes
}

// madeUpRows are the remaining rows.
type madeUpRows [][]any

func (r *madeUpRows) Next() bool { return len(*r) > 0 }

func (r *madeUpRows) Scan(dest ...any) error {
	for i, v := range (*r)[0] {
		reflect.ValueOf(dest[i]).Elem().Set(reflect.ValueOf(v))
	}
	*r = (*r)[1:]
	return nil
}

func (*madeUpRows) Err() error   { return nil }
func (*madeUpRows) Close() error { return nil }

// TestLongestStep publishes while very many keys are blocked and messages behind them are deferred; with OUTBOX_LONG a
// million. No step holds the engine's lock for long, not even loading or forgetting the blocked keys.
func TestLongestStep(t *testing.T) {
	m := madeUp{held: 100_000, behind: 20_000, free: 10_000}
	if os.Getenv("OUTBOX_LONG") != "" {
		m = madeUp{held: 1_000_000, behind: 1_000_000, free: 100_000}
	}
	db := withoutServer(t)
	var sent atomic.Int64
	e, err := newEngine(t.Context(), db, Config{LeaseTTL: time.Hour},
		func(*callContext, core.Delivery, *message.Message) error {
			sent.Add(1)
			return nil
		}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	lock := &heldLock{}
	e.mu = lock
	r := &reader{e: e, q: m, loading: map[int16]*loadingLane{}}
	one := control()
	limit := max(10*time.Millisecond, 10*one)
	t.Logf("control: %s", one)
	longest := func(what string) {
		t.Logf("%s: %s at %s", what, lock.longest.Round(time.Microsecond), lock.where)
		if lock.longest > limit {
			t.Errorf("%s: the lock was held for %s at %s, want at most %s", what, lock.longest, lock.where, limit)
		}
		lock.longest = 0
	}
	e.step(func(now time.Time, m *coordinator.Coordinator) {
		var all []dispatch.Assignment
		for lane := range int16(dispatch.Lanes) {
			all = append(all, dispatch.Assignment{Lane: lane, Epoch: 1})
		}
		m.Renewed(now)
		m.Took(all)
	})
	for load := r.plan().Load; len(load) > 0; load = r.plan().Load {
		if err := r.loadBlocked(t.Context(), load); err != nil {
			t.Fatal(err)
		}
	}
	longest("loading blocked keys")
	for sent.Load() < m.free-m.free/100 {
		if _, err := r.once(t.Context(), r.plan()); err != nil {
			t.Fatal(err)
		}
		e.publishing.Wait()
		for {
			var rows []*dispatch.Row
			e.step(func(_ time.Time, m *coordinator.Coordinator) { rows, _ = m.Results(maxSettle) })
			if len(rows) == 0 {
				break
			}
			e.settled(rows, nil)
		}
	}
	longest("draining")
	e.step(func(_ time.Time, m *coordinator.Coordinator) { m.JoinRefused() })
	longest("forgetting everything")
}

// control measures how long it takes to fill and empty a map with the maximum rows of one read: on this machine, in
// this run.
func control() time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const times, rows = 20, int64(8192)
	begun := threadTime()
	for range times {
		m := map[int64]*dispatch.Row{}
		for id := range rows {
			m[id] = &dispatch.Row{ID: id}
		}
		for id := range rows {
			delete(m, id)
		}
	}
	return (threadTime() - begun) / times
}
