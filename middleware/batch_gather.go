package middleware

import (
	"context"
	"fmt"
	"math/bits"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/core"
)

// batcher gathers messages. One goroutine handles a batch while the messages of the next one gather.
type batcher struct {
	db           *core.DB
	cfg          BatchConfig
	fn           func(context.Context, []*message.Message) error
	inbox        *inbox
	errorHandler *errorHandler
	logger       watermill.LoggerAdapter
	alone        message.HandlerFunc // ErrorHandler, Tx, Inbox and fn for one message

	full chan struct{} // capacity 1: signals that enough messages wait for a batch

	mu      sync.Mutex
	running bool // a goroutine leads a batch
	waiting []*batched
	bytes   int // total payload size of waiting
}

// batched is a message in a batch. Once it has left waiting, it belongs to the goroutine that leads its batch.
type batched struct {
	msg   *message.Message
	ctx   context.Context
	h     *handling
	claim *claim
	began time.Time
	done  chan result // capacity 1

	state batchState
}

type batchState int

const (
	unclaimed batchState = iota // to be handled alone
	ours
	handled    // by an earlier delivery
	rolledBack // by outbox.SetRollbackOnly
)

// result is the outcome of a message in a batch. The zero value acks it.
type result struct {
	alone bool
	cause error // the error of a message that goes alone without a call of fn
}

// join returns when the message's batch is over, or with an error if ctx ended before it began.
func (b *batcher) join(ctx context.Context, one *batched) (result, error) {
	b.mu.Lock()
	b.waiting = append(b.waiting, one)
	b.bytes += len(one.msg.Payload)
	if !b.running {
		b.running = true
		go func() {
			runtime.Gosched() // others may be about to join
			b.lead()
		}()
	}
	if b.enough() {
		select {
		case b.full <- struct{}{}:
		default:
		}
	}
	b.mu.Unlock()
	select {
	case r := <-one.done:
		return r, nil
	case <-ctx.Done():
		if b.leave(one) {
			return result{}, fmt.Errorf("%w: %w", core.ErrNotBegun, ctx.Err())
		}
		return <-one.done, nil // bounded by TxConfig.Timeout
	}
}

// enough must be called with mu held.
func (b *batcher) enough() bool {
	return len(b.waiting) >= b.cfg.MaxMessages || b.bytes >= b.cfg.MaxBytes
}

// leave removes a message that is not yet in a batch.
func (b *batcher) leave(one *batched) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(b.waiting)
	b.waiting = slices.DeleteFunc(b.waiting, func(w *batched) bool { return w == one })
	if len(b.waiting) == n {
		return false
	}
	b.bytes -= len(one.msg.Payload)
	return true
}

// lead handles one batch, and starts the goroutine for the next one if messages wait.
func (b *batcher) lead() {
	var batch []*batched
	finished := false
	defer func() {
		if p := recover(); p != nil { // no Router recovers in this goroutine
			// Cause: a bug of the part that the stack names, or of ours.
			// Cure: the messages are handled one by one.
			b.logger.Error("database hook, driver or logger panicked in a batch", core.Panicked(p), watermill.LogFields{
				"stack": string(debug.Stack())})
		}
		if !finished { // a panic, or the function called runtime.Goexit
			for _, one := range batch {
				select {
				case one.done <- goesAlone(one):
				default: // its half of the batch has a result
				}
			}
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.running = len(b.waiting) > 0; b.running {
			go b.lead()
		}
	}()
	b.gather()
	batch = b.next()
	b.run(batch, &halving{tries: max(len(batch)/8, 8+2*bits.Len(uint(len(batch)))), begun: time.Now()})
	finished = true
}

// gather waits until enough messages wait, or the oldest has waited for MaxWait.
func (b *batcher) gather() {
	if b.cfg.MaxWait == 0 {
		return
	}
	var timer *time.Timer
	for {
		b.mu.Lock()
		if len(b.waiting) == 0 || b.enough() {
			b.mu.Unlock()
			return
		}
		left := time.Until(b.waiting[0].began.Add(b.cfg.MaxWait))
		b.mu.Unlock()
		if left <= 0 {
			return
		}
		if timer == nil {
			timer = time.NewTimer(left)
			defer timer.Stop()
		}
		select {
		case <-timer.C:
			return
		case <-b.full:
		}
	}
}

// next takes a batch from the waiting messages, one message per key: the next batch finds further copies already
// handled.
func (b *batcher) next() (batch []*batched) {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := make(map[string]bool, min(len(b.waiting), b.cfg.MaxMessages))
	bytes := 0
	b.waiting = slices.DeleteFunc(b.waiting, func(w *batched) bool {
		size := len(w.msg.Payload)
		if len(batch) >= b.cfg.MaxMessages || len(batch) > 0 && bytes+size > b.cfg.MaxBytes || seen[w.claim.key] ||
			len(batch) > 0 && w.claim.consumer != batch[0].claim.consumer {
			return false
		}
		seen[w.claim.key] = true
		bytes += size
		batch = append(batch, w)
		return true
	})
	b.bytes -= bytes
	return batch
}
