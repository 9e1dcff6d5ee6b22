package dispatch_test

import (
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

// steps measures the longest step of a scenario. If the scenario runs several times, the fastest run of each step
// counts.
type steps struct {
	took []time.Duration
	at   int
}

func (s *steps) step(fn func()) {
	begun := cpuTime()
	fn()
	took := cpuTime() - begun
	if s.at == len(s.took) {
		s.took = append(s.took, took)
	}
	s.took[s.at] = min(s.took[s.at], took)
	s.at++
}

func (s *steps) slowest() (took time.Duration) {
	for _, t := range s.took {
		took = max(took, t)
	}
	return took
}

// control returns the time to fill and empty a map with 8,192 rows, the maximum of one read: on this machine, in this
// run.
func control() time.Duration {
	const times = 50
	begun := cpuTime()
	for range times {
		m := map[int64]*dispatch.Row{}
		for id := range int64(8192) {
			m[id] = &dispatch.Row{ID: id}
		}
		for id := range int64(8192) {
			delete(m, id)
		}
	}
	return (cpuTime() - begun) / times
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// longest returns the limit for a step: about 5 ms on an idle machine with a fine clock.
func longest(t *testing.T) time.Duration {
	one := control()
	limit := max(20*time.Millisecond, 20*one)
	t.Logf("control: %s, want each step within %s", one, limit)
	return limit
}

// Keys wait for a paused topic, each with one row; with OUTBOX_LONG a million. They take little memory, no step takes
// long, and all are published when the topic is open again.
func TestManyKeysOfAPausedTopic(t *testing.T) {
	const lanes, batch = 64, 8192
	keys := int64(300_000)
	if os.Getenv("OUTBOX_LONG") != "" {
		keys = 1_000_000
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	limit := longest(t)
	payload := make([]byte, 100)
	var s steps
	before := heap()
	b := dispatch.New(dispatch.Config{
		Concurrency: 64, Rows: batch, Backoff: func(int) time.Duration {
			return time.Second
		}, OutageBackoff: func(int) time.Duration { return time.Second },
	})
	now := time.Unix(1e9, 0)
	for lane := range int16(lanes) {
		b.LaneTaken(now, dispatch.NewTakenLane(now, dispatch.Assignment{Lane: lane, Epoch: 1}, nil))
	}
	row := func(id int64) *dispatch.Row {
		r := &dispatch.Row{
			ID: id, Assignment: dispatch.Assignment{Lane: int16(id % lanes), Epoch: 1}, Topic: "down",
			Key: "order/" + strconv.FormatInt(id, 10), Payload: payload,
		}
		if id == keys+1 {
			r.Topic = "up"
		}
		return r
	}
	var marks [lanes]int64
	done, left := make([]bool, keys+2), keys+1
	read := func() (more bool) {
		var a dispatch.Request
		s.step(func() { a = b.ReadBegins(now) })
		answer := dispatch.Read{ByID: map[int64]dispatch.Found{}, DueRead: a.WantDue}
		for lane := range int64(lanes) {
			c := &a.CatchUp
			c.Upto[lane] = marks[lane]
			at, n := c.From[lane]-c.From[lane]%lanes+lane, c.Limits[lane]
			if at < c.From[lane] {
				at += lanes
			}
			for ; at <= marks[lane] && n > 0; at += lanes {
				if !done[at] {
					answer.Caught = append(answer.Caught, row(at))
					n--
				}
			}
		}
		for lane := range int64(lanes) {
			id := marks[lane] - marks[lane]%lanes + lane
			if id <= marks[lane] {
				id += lanes
			}
			n := (a.Room.Rows + lanes - 1) / lanes
			for ; id <= keys+1 && n > 0; id += lanes {
				if !done[id] {
					answer.Ready = append(answer.Ready, row(id))
					n--
				}
				marks[lane] = id
			}
			more = more || id <= keys+1
			answer.Lanes = append(answer.Lanes, dispatch.LaneRead{
				Assignment: dispatch.Assignment{Lane: int16(lane), Epoch: 1}, Cursor: marks[lane],
			})
		}
		for _, id := range a.IDs {
			answer.ByID[id] = dispatch.Found{Row: row(id)}
		}
		s.step(func() { more = b.RowsRead(now, a, answer).More || more })
		return more
	}
	publish := func(v dispatch.Verdict) (n int) {
		for {
			var c *dispatch.Call
			s.step(func() { c = b.Next(now, nil) })
			if c == nil {
				break
			}
			verdict := v
			if c.Row.Topic == "up" {
				verdict = dispatch.OK
			}
			if verdict == dispatch.OK {
				done[c.Row.ID] = true
				left--
				n++
			}
			s.step(func() { b.Returned(now, c, result(verdict)) })
		}
		s.step(func() { b.Effects() })
		published, _ := b.Results(batch * 2)
		s.step(func() { b.Settled(now, published, nil) })
		for tick, _ := b.NextTimes(); !tick.IsZero() && !tick.After(now); tick, _ = b.NextTimes() {
			s.step(func() { b.Tick(now) })
		}
		return n
	}

	up := 0
	for read() {
		up += publish(dispatch.Unavailable)
	}
	up += publish(dispatch.Unavailable)
	if up != 1 {
		t.Fatalf("%d published while the topic was paused, want only the message of another topic", up)
	}
	used := int64(heap()) - int64(before)
	t.Logf("%d keys: %d wait, %.1f MiB", keys, b.Counts().Waiting, float64(used)/(1<<20))
	if used > 128*keys {
		t.Errorf("%d keys of a paused topic take %d MiB", keys, used>>20)
	}

	now = now.Add(time.Hour)
	for reads := 0; left > 0 && reads < 10_000; reads++ {
		read()
		publish(dispatch.OK)
	}
	if left != 0 {
		t.Fatalf("%d of %d are not published although the topic is open again", left, keys+1)
	}
	if b.ReadBegins(now); b.Sizes() != (dispatch.Sizes{Topics: 2}) || !b.Quiet() {
		t.Fatalf("%+v is left", b.Sizes())
	}
	if took := s.slowest(); took > limit {
		t.Errorf("a step took %s", took)
	} else {
		t.Logf("%d steps, the slowest %s", len(s.took), took)
	}
}
