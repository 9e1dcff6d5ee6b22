package forwarder

import (
	"container/heap"
	"time"
)

// retry is a row that is due for another attempt at a time.
type retry struct {
	at   time.Time
	lane *lane
	key  *key // nil without an ordering key
	id   int64
	head *heldBy // nil without an ordering key
}

// stale says that the head was settled, or got another time, since.
func (r retry) stale() bool {
	return r.lane.lost || r.key != nil && (r.key.heads[r.id] != r.head || !r.head.due.Equal(r.at))
}

// retryQueue holds retries, the next one first.
type retryQueue struct{ heap retryHeap }

func (q *retryQueue) add(r retry) { heap.Push(&q.heap, r) }

// due removes and returns the first retry if its time has come.
func (q *retryQueue) due(now time.Time) (retry, bool) {
	if len(q.heap) == 0 || q.heap[0].at.After(now) {
		return retry{}, false
	}
	return heap.Pop(&q.heap).(retry), true
}

// next returns when the first retry is due.
func (q *retryQueue) next() (time.Time, bool) {
	if len(q.heap) == 0 {
		return time.Time{}, false
	}
	return q.heap[0].at, true
}

type retryHeap []retry

func (h retryHeap) Len() int           { return len(h) }
func (h retryHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h retryHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *retryHeap) Push(x any)        { *h = append(*h, x.(retry)) }
func (h *retryHeap) Pop() any {
	old := *h
	r := old[len(old)-1]
	*h = old[:len(old)-1]
	return r
}
