package nats

import (
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/inbound"
	"github.com/millrace-go/watermill-outbox/internal/keyed"
)

const pinHeader = "Nats-Pin-Id"

// record is a message in a window.
type record struct {
	msg     *natsgo.Msg
	in      *natsgo.Msg
	touched time.Time // when JetStream was last told that it is in progress
	cause   error     // error of the last attempt; nil = unknown
	unkeyed bool      // Key panicked, so its order is unknown
	out     bool      // being delivered
}

func (r record) lastError() error { return r.cause }

type item = keyed.Item[record]

// term is a period in which this process owns the consumer.
type term struct {
	*reader
	pin     string
	lease   time.Time // no other process can be the owner before this time
	window  *keyed.Window[record]
	held    map[int64]*item // all unfinished messages
	unacked []*natsgo.Msg   // handled, but not acked because the connection was lost

	// last is the consumer's count of the last delivery. whole means that all messages pending an ack are held here:
	// otherwise an older message of a key may be missing.
	last  uint64
	whole bool

	running, again int // deliveries in flight, and how many of them failed before
	pause          inbound.Pause
	exhausted      bool          // no pulls, because MaxBytes are in memory, until half of them are handled
	abandoned      chan struct{} // closed when acks are no longer awaited
}

func newTerm(r *reader, pin string) *term {
	return &term{
		reader: r, pin: pin, held: map[int64]*item{}, abandoned: make(chan struct{}),
		window: keyed.New[record](keyed.Limits{Records: r.cfg.MaxAhead, Bytes: int64(r.cfg.MaxBytes), Forget: true}, 0),
	}
}

// renew extends the lease from the time of a pull that reached the server. The lease ends early enough to leave time
// for a request to the server.
func (t *term) renew(sent time.Time) {
	if end := sent.Add(t.cfg.pinnedTTL() - t.cfg.pullWait()); end.After(t.lease) {
		t.lease = end
	}
}

func (t *term) valid() bool { return time.Now().Before(t.lease) }

// owns reports whether a message belongs to this term. An empty pin is unknown; the message belongs to the term if it
// follows the last delivery directly, because then no other process got a message meanwhile.
func (t *term) owns(pin string, meta *natsgo.MsgMetadata) bool {
	if t.pin == "" && meta.Sequence.Consumer == t.last+1 {
		t.pin = pin
	}
	return pin == "" || pin == t.pin
}

// take holds a message. A gap in the count of deliveries means that a message was lost in transit and will be
// redelivered.
func (t *term) take(in *natsgo.Msg, meta *natsgo.MsgMetadata) {
	if t.last != 0 && meta.Sequence.Consumer != t.last+1 {
		t.whole = false
	}
	t.last = meta.Sequence.Consumer
	if len(in.Header.Values(pinHeader)) == 0 { // the server does not confirm that this process is the owner
		t.whole = false
	}
	pos := int64(meta.Sequence.Stream) //nolint:gosec // a stream has fewer
	now := time.Now()
	if it := t.held[pos]; it != nil {
		it.Value.in, it.Value.touched = in, now
		return
	}
	in.Header.Del(pinHeader)
	rec := record{msg: &natsgo.Msg{Subject: in.Subject, Header: in.Header, Data: in.Data}, in: in, touched: now}
	key, err := t.deliverer.KeyOf(rec.msg)
	if err != nil {
		key, rec.unkeyed = []byte(in.Subject), true
	}
	if it := t.window.Add(pos, key, rec.msg.Size(), rec); it != nil {
		t.held[pos] = it
	}
	t.regulate()
}

// compare sets whole if all messages pending an ack are held here and no delivery is still in transit.
func (t *term) compare(info *jetstream.ConsumerInfo) {
	if info.Delivered.Consumer != t.last {
		return
	}
	pin := pinned(info)
	if t.pin == "" {
		t.pin = pin // a new owner exists only once it gets a delivery
	}
	if pin == "" || pin != t.pin {
		t.lose()
		return
	}
	held := 0
	for pos := range t.held {
		if pos > int64(info.AckFloor.Stream) { //nolint:gosec // else it is not waited for: the stream has dropped it
			held++
		}
	}
	if t.whole = info.NumAckPending <= held; t.whole {
		t.logger.Debug("everything that the previous owner had in flight was delivered again",
			watermill.LogFields{"messages": len(t.held)})
	}
}

// start delivers the oldest ready messages while slots are free.
func (t *term) start() {
	t.window.Wake(time.Now())
	if t.stopped || !t.whole || !t.valid() {
		return
	}
	for t.running < t.cfg.Concurrency {
		it := t.window.Start(t.again < keyed.Retries(t.cfg.Concurrency))
		if it == nil {
			return
		}
		again := it.Failures > 0
		if t.running++; again {
			t.again++
		}
		rec := it.Value
		it.Value.out = true
		t.pause.Active = time.Now()
		go t.deliver(it, rec, again)
	}
}

// settle acks or naks a delivery, depending on its result.
func (t *term) settle(r result) {
	if t.running--; r.again {
		t.again--
	}
	t.pause.Active = time.Now()
	r.item.Value.out = false
	switch r.Verdict {
	case inbound.Acked:
		t.ack(r.item.Value.in)
		delete(t.held, r.item.Pos)
		t.window.Done(r.item)
		t.regulate()
	case inbound.Nacked, inbound.Withdrawn:
		r.item.Value.cause = r.Cause
		later := r.Later
		if later == 0 {
			later = core.Backoff(t.cfg.Backoff).Delay(r.item.Failures + 1)
		}
		now := time.Now()
		t.window.Hold(r.item, now, now.Add(later))
	}
}

// ack sends an ack only while this process is the owner: the next owner relies on the list of pending messages.
func (t *term) ack(in *natsgo.Msg) {
	if !t.valid() || in.Ack() != nil {
		t.unacked = append(t.unacked, in)
	}
}

func (t *term) ackAgain() {
	if !t.valid() || len(t.unacked) == 0 {
		return
	}
	failed := t.unacked
	t.unacked = nil
	for _, in := range failed {
		t.ack(in)
	}
}

// touch extends the ack wait of unfinished messages, so that JetStream does not redeliver them.
func (t *term) touch() {
	if !t.valid() {
		return
	}
	now := time.Now()
	for _, it := range t.held {
		if now.Sub(it.Value.touched) >= t.cfg.AckWait/3 && it.Value.in.InProgress() == nil {
			it.Value.touched = now
		}
	}
}

// handBack makes JetStream redeliver messages that no handler has to the next owner immediately, oldest first.
func (t *term) handBack() {
	var back []*item
	for _, it := range t.held {
		if !it.Value.out {
			back = append(back, it)
		}
	}
	slices.SortFunc(back, func(a, b *item) int { return int(a.Pos - b.Pos) })
	for _, it := range back {
		_ = it.Value.in.Nak() // after an error the message is redelivered after AckWait
	}
}
