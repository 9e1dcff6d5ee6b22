package forwarder

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/idle"
)

var errNotNow = errors.New("not now")

// startedGroup is a Group with the test's clock. Each of its databases has a forwarder that keeps starting until the
// test makes it fail.
type startedGroup struct {
	*Group
	now      time.Time
	inside   atomic.Int64
	most     int64         // limit of active forwarders
	starts   chan struct{} // one value per forwarder that has begun to start
	goOn     chan struct{} // one value per forwarder that may fail
	startCtx context.Context
}

// newStartedGroup returns a group of databases that all have work.
func newStartedGroup(t *testing.T, databases, maxActive int) *startedGroup {
	var targets []fleet.Target
	for i := range databases {
		targets = append(targets, fleet.Target{Key: fmt.Sprint("db-", i), DSN: fmt.Sprintf("postgres://127.0.0.1:1/db%d", i)})
	}
	f, err := fleet.New(fleet.Static(targets...), fleet.Config{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Run(context.Background()) }()
	<-f.Running()
	s := &startedGroup{
		now: time.Now(), most: int64(maxActive), starts: make(chan struct{}, databases), goOn: make(chan struct{}),
	}
	broker := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	starting := func(context.Context, string, *Config, *message.Publisher) error {
		if n := s.inside.Add(1); n > s.most {
			t.Errorf("%d concurrent forwarders, the limit is %d", n, s.most)
		}
		defer s.inside.Add(-1)
		s.starts <- struct{}{}
		<-s.goOn
		return errNotNow
	}
	s.Group, err = NewGroup(f, broker, GroupConfig{MaxActive: maxActive, Configure: starting}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var end context.CancelFunc
	s.startCtx, end = context.WithCancel(context.Background())
	t.Cleanup(func() {
		end()
		close(s.goOn)
		if err := s.Run(s.startCtx); err != nil { // waits for all work
			t.Error(err)
		}
		broker.Close()
		f.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	s.scheduler.Sync()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.scheduler.All() {
		s.woken(s.startCtx, d.Own)
	}
	return s
}

// begin waits for the next n forwarders to begin their start, and checks that no others do.
func (s *startedGroup) begin(t *testing.T, n int) {
	t.Helper()
	s.mu.Lock()
	s.pass(s.startCtx, s.now)
	s.mu.Unlock()
	for range n {
		<-s.starts
	}
	s.mu.Lock()
	active := len(s.active)
	s.mu.Unlock()
	if inside := int(s.inside.Load()); inside != active {
		t.Errorf("%d forwarders start while %d are active", inside, active)
	}
}

// fail makes one of them fail.
func (s *startedGroup) fail() {
	s.mu.Lock()
	before := len(s.active)
	s.mu.Unlock()
	s.goOn <- struct{}{}
	for after := before; after == before; {
		<-s.scheduler.Signals() // it signals when it has ended
		s.mu.Lock()
		after = len(s.active)
		s.mu.Unlock()
	}
}

// TestAGroupStartsNoMoreThanMaxActive: the next forwarder starts when an earlier one has ended.
func TestAGroupStartsNoMoreThanMaxActive(t *testing.T) {
	const databases, maxActive = 20, 3
	s := newStartedGroup(t, databases, maxActive)
	s.begin(t, maxActive)
	for i := range databases {
		s.fail()
		s.begin(t, min(1, max(0, databases-maxActive-i)))
	}
}

// TestStuckForwardersAreBounded: forwarders that wait for their databases free their slots for others, up to a limit.
func TestStuckForwardersAreBounded(t *testing.T) {
	const databases, maxActive = 20, 3
	s := newStartedGroup(t, databases, maxActive)
	for n := range stuckForwarders + 1 {
		s.most = int64(min(n+1, stuckForwarders) * maxActive)
		s.begin(t, int(s.most)-int(s.inside.Load()))
		s.now = s.now.Add(stuckAfter + 1)
	}
	s.fail()
	s.begin(t, 1)
}

// TestABrokenDatabaseIsSkipped, unless a call of Drain waits for it.
func TestABrokenDatabaseIsSkipped(t *testing.T) {
	s := newStartedGroup(t, 1, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.queue[0]
	d.drains = []wanted{{0, make(chan error, 1)}}
	if s.broken(d, errNotNow, s.now); !d.SkipUntil.IsZero() {
		t.Error("it is skipped while Drain waits")
	}
	d.answer(nil)
	if s.broken(d, errNotNow, s.now); !d.SkipUntil.After(s.now) {
		t.Error("the database is not skipped")
	}
}

// TestAFailedPollLeavesADatabaseThatWoke: the forwarder that began meanwhile answers the calls of Drain.
func TestAFailedPollLeavesADatabaseThatWoke(t *testing.T) {
	s := newStartedGroup(t, 1, 1)
	s.mu.Lock()
	d := s.scheduler.All()[0].Own
	s.scheduler.Wake(d.Database)
	d.drains = []wanted{{0, make(chan error, 1)}}
	s.mu.Unlock()
	s.pollFailed(d, 1, errNotNow)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(d.drains) != 1 || d.breaker.Failing() {
		t.Errorf("%d calls of Drain wait, failing: %v", len(d.drains), d.breaker.Failing())
	}
}

// TestDrainIsNotAnsweredByAnEarlierPoll: the next poll covers all databases, even immediately after another one.
func TestDrainIsNotAnsweredByAnEarlierPoll(t *testing.T) {
	s := newStartedGroup(t, 1, 1)
	s.mu.Lock()
	d := s.queue[0]
	s.queue = nil
	s.mu.Unlock()
	list, _, number := s.toPoll([]*database{d}, s.now)
	w := wanted{number, make(chan error, 1)}
	s.mu.Lock()
	d.drains = append(d.drains, w)
	s.mu.Unlock()
	s.polled(list[0], idle.Poll{All: true, Number: 1, Oldest: 1, Next: 1, Due: -1}, number, time.Second)
	select {
	case <-w.done:
		t.Error("Drain returned")
	default:
	}
	if list, _, _ := s.toPoll([]*database{d}, s.now); len(list) != 1 || !list[0].all {
		t.Errorf("the next poll covers %v", list)
	}
}
