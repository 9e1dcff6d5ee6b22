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

// bubbleServer is a server with the tables of one outbox and the clock of a bubble. It runs the forwarder's statements
// as package modeldb does, which is compared with Postgres. Times are microseconds.
type bubbleServer struct {
	mu            sync.Mutex
	db            *modeldb.DB
	crashes       int
	leases        map[string]time.Time // when each forwarder's lease ends
	joining       *bubbleTx            // the transaction in which a forwarder joins
	ended         chan struct{}        // closed when a transaction ends for which others may wait
	listeners     map[chan struct{}]bool
	ofDue         int      // number of reads of due messages
	cleanings     []int64  // ids above which published messages were deleted
	othersCleaned int      // statements that deleted rows of other tables
	paused        []string // topics that a forwarder last wrote as paused
	facts         string   // that a forwarder last wrote, except when it joined
}

func newBubbleServer() *bubbleServer {
	return &bubbleServer{
		db: modeldb.New(1000), leases: map[string]time.Time{}, ended: make(chan struct{}),
		listeners: map[chan struct{}]bool{},
	}
}

// bubbleAnswer is the result of a statement.
type bubbleAnswer struct {
	rows    [][]any
	touched int64
}

// statement executes a statement, or reports that it is blocked by a lock. It is called with mu held.
type statement func(s *bubbleServer, args []any) (a bubbleAnswer, blocked bool)

// run runs a statement in its own transaction.
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

// clock updates the server's time and removes expired leases.
func (s *bubbleServer) clock() {
	now := time.Now()
	s.db.Now = now.UnixMicro()
	for id, until := range s.leases {
		if !now.Before(until) {
			s.db.Heartbeat(id, false, false)
		}
	}
}

// released wakes statements that are blocked by a lock.
func (s *bubbleServer) released() {
	close(s.ended)
	s.ended = make(chan struct{})
}

// crash restarts the server: open transactions are lost, and ids may be skipped.
func (s *bubbleServer) crash() {
	s.mu.Lock()
	defer s.mu.Unlock()
	header := s.header()
	s.db.Crash(header.Seq+32, header.NextXid+1)
	s.crashes++
	s.joining = nil
	s.released()
}

// header is the response to a read that requests no rows.
func (s *bubbleServer) header() modeldb.Answer {
	return s.db.Fetch(modeldb.Request{
		Epochs: make([]int64, modeldb.Lanes), Marks: make([]int64, modeldb.Lanes), Limits: make([]int64, modeldb.Lanes),
		Rewound: make([]int64, modeldb.Lanes),
	})
}

// transaction runs fn in a transaction of a writer or an operator, and keeps it open while hold runs.
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
	for c := range s.listeners {
		signal(c)
	}
}

// insertMessage inserts the nth message of a key. Its UUID contains n.
func insertMessage(tx *modeldb.Tx, topic, key string, n int) {
	tx.Insert(modeldb.Row{UUID: key + "/" + strconv.Itoa(n), Topic: topic, Key: key, Lane: laneOf(key)})
}

func laneOf(key string) int16 {
	h := fnv.New32a()
	h.Write([]byte(key))
	return int16(h.Sum32() % modeldb.Lanes)
}

// readsOfDue returns the number of reads of due messages.
func (s *bubbleServer) readsOfDue() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ofDue
}

// pending returns the number of unpublished messages.
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

// has reports whether a message is committed.
func (s *bubbleServer) has(uuid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.db.Rows(), func(r *modeldb.Row) bool { return r.UUID == uuid })
}

// owns reports whether a lane belongs to a forwarder whose lease has not expired.
func (s *bubbleServer) owns(owner string, lane int16) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock()
	lanes, alive := s.db.Lanes()
	return lanes[lane].Owner == owner && alive[lane]
}
