package forwarder

import (
	"slices"
	"time"
)

const (
	// maxChain is how many rows of one key are kept in memory; the ids of further ones are noted.
	maxChain = 128
	// maxSkipped is how many ids are noted for one key; beyond it the lane is read again from the first
	// one that was not.
	maxSkipped = 65536
	// headRecheck is how often a head that nobody retries is looked at.
	headRecheck = 30 * time.Second
	// bucketChunk is how many skipped rows without a key are read at once.
	bucketChunk = 256
)

// key is an ordering key with rows under way. Its rows leave one after another, in the order of its
// chain. While it is blocked, or its chain is full, rows that are read are skipped: their ids are noted,
// in order, and read again by id when their turn comes.
//
// Rows without an ordering key follow nobody, but those of a paused topic are skipped in the same way:
// in a bucket, a key whose name no message can have.
type key struct {
	lane       *lane
	name       string
	chain      []*row            // in memory; the first is queued or being published
	first      [1]*row           // what chain starts in: most keys have one row at a time
	queued     bool              // the first is on board.runnable
	publishing bool              // the first is being published
	heads      map[int64]*heldBy // rows that wait for another attempt: they hold the key
	topic      *topic            // a paused topic that holds the key
	skipped    []int64           // ascending
	overflow   int64             // the lowest id that was skipped and not noted; 0 = none
	releasing  bool              // on board.releases
}

// heldBy is what a key knows of a row that holds it.
type heldBy struct {
	topic string
	due   time.Time // of its next attempt; zero while that is under way
}

// head is a row that waits for another attempt.
type head struct {
	id       int64
	key      string
	topic    string
	attempts int
	wait     time.Duration
	dead     bool
}

func bucketOf(topic string) string { return "\x00" + topic }

func (k *key) isBucket() bool { return k.name != "" && k.name[0] == 0 }

func (k *key) blocked() bool { return len(k.heads) > 0 || k.topic != nil }

func (k *key) setHead(id int64, topic string) *heldBy {
	if k.heads == nil {
		k.heads = map[int64]*heldBy{}
	}
	k.heads[id] = &heldBy{topic: topic}
	return k.heads[id]
}

// waitsFor says whether the key is held by the row, or skipped it.
func (k *key) waitsFor(id int64) bool {
	_, skipped := slices.BinarySearch(k.skipped, id)
	return skipped || k.heads[id] != nil
}

func (k *key) unskip(id int64) {
	if i, found := slices.BinarySearch(k.skipped, id); found {
		k.skipped = slices.Delete(k.skipped, i, i+1)
	}
}

func (b *board) keyOf(l *lane, name string) *key {
	k := l.keys[name]
	if k == nil {
		k = &key{lane: l, name: name}
		k.chain = k.first[:0]
		l.keys[name] = k
	}
	return k
}

// skip notes a row that must wait for its key. If there are too many, the highest is not noted, nor is
// any above it: they are read again together.
func (b *board) skip(k *key, id int64) {
	if k.overflow != 0 && id >= k.overflow {
		return
	}
	i, found := slices.BinarySearch(k.skipped, id)
	if found {
		return
	}
	k.skipped = slices.Insert(k.skipped, i, id)
	if last := len(k.skipped) - 1; last >= b.maxSkipped {
		k.overflow = k.skipped[last]
		k.skipped = k.skipped[:last]
	}
}

// hold takes the rows of a blocked key out of memory, but for one that is being published.
func (b *board) hold(k *key) {
	keep := 0
	if k.publishing {
		keep = 1
	}
	for _, r := range k.chain[keep:] {
		b.skip(k, r.id)
		delete(r.lane.inflight, r.id)
		b.buffered--
	}
	k.chain = k.chain[:keep]
	k.queued = false
}

// addHead notes a row that waits for another attempt; its key is held from now on.
func (b *board) addHead(k *key, h head, now time.Time) {
	b.hold(k)
	due := now.Add(h.wait)
	if h.dead {
		due = now.Add(headRecheck)
	}
	b.retryHead(k, h.id, k.setHead(h.id, h.topic), due)
}

// retryHead says when a head is due for another attempt.
func (b *board) retryHead(k *key, id int64, h *heldBy, due time.Time) {
	h.due = due
	b.retries.add(retry{at: due, lane: k.lane, key: k, id: id, head: h})
}

// removeHead lets go of a head that is settled for good.
func (b *board) removeHead(k *key, id int64) {
	delete(k.heads, id)
	b.advance(k)
}

// advance goes on with a key after something of it changed: it queues the next row, asks for skipped
// ones, or forgets the key.
func (b *board) advance(k *key) {
	if k.blocked() || k.lane.lost {
		return
	}
	b.queueFirst(k)
	switch {
	case len(k.skipped) > 0 || k.overflow != 0:
		if len(k.chain) <= b.maxChain/4 && !k.releasing {
			k.releasing = true
			b.releases = append(b.releases, k)
		}
	case len(k.chain) == 0 && k.lane.keys[k.name] == k:
		delete(k.lane.keys, k.name)
	}
}

// queueFirst puts the first row of a chain on the queue, unless it is there or under way.
func (b *board) queueFirst(k *key) {
	if len(k.chain) > 0 && !k.queued && !k.publishing {
		k.queued = true
		b.runnable.push(k.chain[0])
	}
}

// release returns the ids of a key to read now, at most room of them.
func (b *board) release(k *key, room int) []int64 {
	if len(k.skipped) == 0 && k.overflow != 0 {
		k.lane.mark = min(k.lane.mark, k.overflow-1)
		k.overflow = 0
		b.advance(k)
		return nil
	}
	n := b.maxChain - len(k.chain)
	if k.isBucket() {
		n = bucketChunk
	}
	return slices.Clone(k.skipped[:min(n, room, len(k.skipped))])
}
