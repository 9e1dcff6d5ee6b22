//go:build unix

package integration_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Order is a message for the handler.
type Order struct {
	ID, Key, Kind string
}

const (
	kindFailing = "failing" // the handler fails the first time that it is delivered
	kindPoison  = "poison"
)

var errStopping = errors.New("stopping")

// source is a broker that delivers orders at least once: to another worker when one dies or nacks, and
// some of them twice for no reason, at once or after the ack.
type source struct {
	mu      sync.Mutex
	changed *sync.Cond
	keys    int
	queue   []Order
	holding map[*worker][]Order // delivered and not answered
	acked   map[string]string   // to kind
	made    int
	copies  int
}

func newSource(keys int) *source {
	s := &source{keys: keys, holding: map[*worker][]Order{}, acked: map[string]string{}}
	s.changed = sync.NewCond(&s.mu)
	return s
}

// feed makes an order at a steady pace until the function that it returns is called.
func (s *source) feed(every time.Duration) (stop func()) {
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.make()
			case <-stopped:
				return
			}
		}
	}()
	return sync.OnceFunc(func() { close(stopped); <-done })
}

func (s *source) make() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) > 50 {
		return
	}
	s.made++
	o := Order{ID: fmt.Sprintf("order-%d", s.made), Key: fmt.Sprintf("key-%d", rand.IntN(s.keys))}
	switch {
	case s.made%16 == 7:
		o.Kind = kindPoison
	case s.made%8 == 3:
		o.Kind = kindFailing
	}
	s.push(o)
	if s.made%4 == 0 {
		s.copies++
		s.push(o)
	}
}

// push is called with mu held.
func (s *source) push(o Order) {
	s.queue = append(s.queue, o)
	s.changed.Broadcast()
}

// take waits for an order for a worker.
func (s *source) take(w *worker) (Order, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) == 0 && !w.stopping() {
		s.changed.Wait()
	}
	if w.stopping() {
		return Order{}, errStopping
	}
	o := s.queue[0]
	s.queue = s.queue[1:]
	s.holding[w] = append(s.holding[w], o)
	return o, nil
}

func (s *source) ack(w *worker, o Order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.drop(w, o) {
		return
	}
	s.acked[o.ID] = o.Kind
	if rand.IntN(8) == 0 {
		s.copies++
		s.push(o)
	}
}

func (s *source) nack(w *worker, o Order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.drop(w, o) {
		return
	}
	if o.Kind == kindFailing {
		o.Kind = ""
	}
	s.push(o)
}

// drop says whether the worker still held the order: what it had when it died was given back.
func (s *source) drop(w *worker, o Order) bool {
	for i, held := range s.holding[w] {
		if held == o {
			s.holding[w] = append(s.holding[w][:i], s.holding[w][i+1:]...)
			return true
		}
	}
	return false
}

// release delivers what a worker held when it ended to others, and wakes it if it only stops.
func (s *source) release(w *worker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.ended() {
		for _, o := range s.holding[w] {
			s.push(o)
		}
		delete(s.holding, w)
	}
	s.changed.Broadcast()
}

// ackedOrders returns the orders that were acked, to their kinds.
func (s *source) ackedOrders() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	acked := make(map[string]string, len(s.acked))
	for id, kind := range s.acked {
		acked[id] = kind
	}
	return acked
}

// exhausted says whether every order, and every copy of one, was acked.
func (s *source) exhausted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, held := range s.holding {
		if len(held) > 0 {
			return false
		}
	}
	return len(s.queue) == 0
}
