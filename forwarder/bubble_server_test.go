package forwarder

import (
	"context"
	"hash/fnv"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/testing/modeldb"
)

// bubbleServer is a server with the tables of one outbox and the clock of a bubble: it answers the statements of the
// forwarder as package modeldb does, which is held against Postgres. Times are microseconds.
type bubbleServer struct {
	mu      sync.Mutex
	db      *modeldb.DB
	crashes int
	leases  map[string]time.Time // until when those of the forwarders last
	joining *bubbleTx            // the transaction in which a forwarder joins
	ended   chan struct{}        // closed when a transaction ends that others may wait for
	heard   map[chan struct{}]bool
	ofDue   int // reads that looked for due messages
}

func newBubbleServer() *bubbleServer {
	return &bubbleServer{
		db: modeldb.New(1000), leases: map[string]time.Time{}, ended: make(chan struct{}), heard: map[chan struct{}]bool{},
	}
}

// bubbleAnswer is what a statement came to.
type bubbleAnswer struct {
	rows    [][]any
	touched int64
}

// statement does what one does, or says that it waits for a lock. It is called under mu.
type statement func(s *bubbleServer, args []any) (a bubbleAnswer, blocked bool)

// run runs a statement in a transaction of its own.
func (s *bubbleServer) run(ctx context.Context, do statement, args []any) (bubbleAnswer, error) {
	for {
		s.mu.Lock()
		s.clock()
		a, blocked := do(s, args)
		crashes, ended := s.crashes, s.ended
		s.mu.Unlock()
		if !blocked {
			return a, nil
		}
		select {
		case <-ctx.Done():
			return a, ctx.Err()
		case <-ended:
		}
		if s.crashed(crashes) {
			return a, errBroken
		}
	}
}

func (s *bubbleServer) crashed(before int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.crashes != before
}

// clock sets the time, and ends the leases that are over.
func (s *bubbleServer) clock() {
	now := time.Now()
	s.db.Now = now.UnixMicro()
	for id, until := range s.leases {
		if !now.Before(until) {
			s.db.Heartbeat(id, false, false)
		}
	}
}

// released wakes what waits for a lock.
func (s *bubbleServer) released() {
	close(s.ended)
	s.ended = make(chan struct{})
}

// crash restarts the server: what is open is gone, and ids may be passed by.
func (s *bubbleServer) crash() {
	s.mu.Lock()
	defer s.mu.Unlock()
	header := s.header()
	s.db.Crash(header.Seq+32, header.NextXid+1)
	s.crashes++
	s.joining = nil
	s.released()
}

// header is what a read finds that asks for no rows.
func (s *bubbleServer) header() modeldb.Answer {
	return s.db.Fetch(modeldb.Request{
		Epochs: make([]int64, modeldb.Lanes), Marks: make([]int64, modeldb.Lanes), Limits: make([]int64, modeldb.Lanes),
		Rewound: make([]int64, modeldb.Lanes),
	})
}

// transaction runs fn in a transaction of a writer or an operator, which stays open while hold runs.
func (s *bubbleServer) transaction(fn func(*modeldb.Tx), hold func()) {
	s.mu.Lock()
	s.clock()
	tx, crashes := s.db.Begin(), s.crashes
	fn(tx)
	s.mu.Unlock()
	hold()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.crashes != crashes {
		return
	}
	tx.End(true)
	s.released()
	for c := range s.heard {
		signal(c)
	}
}

// insertMessage writes a message, whose UUID says which of its key it is.
func insertMessage(tx *modeldb.Tx, topic, key string, n int) {
	tx.Insert(modeldb.Row{UUID: key + "/" + strconv.Itoa(n), Topic: topic, Key: key, Lane: laneOf(key)})
}

func laneOf(key string) int16 {
	h := fnv.New32a()
	h.Write([]byte(key))
	return int16(h.Sum32() % modeldb.Lanes)
}

// readsOfDue returns how many reads have looked for due messages.
func (s *bubbleServer) readsOfDue() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ofDue
}

// pending is how many messages are not published.
func (s *bubbleServer) pending() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.db.Rows() {
		if !r.Published {
			n++
		}
	}
	return n
}

// has says whether a message is committed.
func (s *bubbleServer) has(uuid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.db.Rows(), func(r *modeldb.Row) bool { return r.UUID == uuid })
}

// owns says whether a lane belongs to a forwarder whose lease is not over.
func (s *bubbleServer) owns(owner string, lane int16) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock()
	lanes, alive := s.db.Lanes()
	return lanes[lane].Owner == owner && alive[lane]
}
