package kafka

import (
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/inbound"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

const (
	// notPaused is how many times ParkConfig.After a message fails before it is parked though there is room.
	notPaused = 10
	// drainRows is how many rows of a key are waited for in the window. A key with more is parked on: it drains when its
	// handler has been faster than its producer for long enough.
	drainRows = 1000
	// drainWait is how often the head of a key that drains looks whether it has left.
	drainWait = 100 * time.Millisecond
)

// parked is a key of a partition of which something is, or may be, in the park.
type parked struct {
	pile
	stores int // that were begun
	busy   bool
	moved  time.Time // when its oldest row was last seen to be another one
	drains time.Time // since when it is drained, by turns; zero = it was not yet
}

// parking is what a partition knows of the park. The goroutine of the partition owns it; only this goroutine stores, so
// what it finds in the table is what it stored, or what the owner of the partition before it stored.
type parking struct {
	keys    map[string]*parked // nil = none
	loads   chan map[string]pile
	loaded  bool
	looks   chan glance
	looking bool
}

// glance is one look at the table.
type glance struct {
	began map[string]parked // what was known of the keys
	piles map[string]pile
	err   error
}

// fate says what a message that is ready is handed to.
type fate int

const (
	toHandler fate = iota
	toPark
	toWait
)

// load asks what is parked. Nothing is started before: the former owner of the partition may have parked the key of the
// first message.
func (p *partition) load() {
	if p.lot == nil {
		p.parking.loaded = true
		return
	}
	loads := make(chan map[string]pile)
	p.parking.loads, p.parking.looks = loads, make(chan glance, 1) // one look is asked for at a time
	go func() {
		// Cause: the database cannot be reached, or the role may not create the tables of the park.
		// Cure: fix what the error names, or create them with schema.Migrate and a role that may.
		told := trouble.Log{Logger: p.logger, What: "loading parked keys"}
		wait := core.Backoff{Initial: 100 * time.Millisecond, Max: 10 * time.Second}
		for n := 1; ; n++ {
			piles, err := p.lot.load(p.subscription.ctx)
			told.Tell(err)
			if err == nil {
				select {
				case loads <- piles:
				case <-p.stopping:
				}
				return
			}
			timer := time.NewTimer(wait.Delay(n))
			select {
			case <-timer.C:
			case <-p.stopping:
				timer.Stop()
				return
			}
		}
	}()
}

// learn is what load found.
func (p *partition) learn(piles map[string]pile) {
	p.parking.loaded = true
	for key, pile := range parkedOf(p.claim.Partition(), piles) {
		p.lot.keys.Add(1)
		p.parks(key).pile = pile
	}
}

// parks adds a key.
func (p *partition) parks(key string) *parked {
	if p.parking.keys == nil {
		p.parking.keys = map[string]*parked{}
	}
	k := &parked{}
	p.parking.keys[key] = k
	return k
}

// unpark forgets a key.
func (p *partition) unpark(key string) {
	delete(p.parking.keys, key)
	p.lot.keys.Add(-1)
}

// fate decides about a message that is to be started. Nothing of its key is at work in this claim.
func (p *partition) fate(it *item) (fate, string) {
	if p.lot == nil || it.Failures == 0 && len(p.parking.keys) == 0 {
		return toHandler, ""
	}
	key := parkedKey(p.claim.Partition(), it.Key())
	now := time.Now()
	if k := p.parking.keys[key]; k != nil && key != "" {
		if it.Value.unkeyed || p.drains(k, now) {
			return toWait, key
		}
		return toPark, key
	}
	if it.Failures == 0 || it.Value.unkeyed || !p.overdue(it, now) || !p.lot.take(key) {
		return toHandler, ""
	}
	if key != "" {
		p.parks(key)
	}
	if p.lines.Due("parked") {
		// Cause: a message failed for longer than ParkConfig.After.
		// Cure: fix what the inbox row of the message names as its last error; its key goes on by itself then.
		p.logger.Error("message keeps failing: it is parked in Postgres with all that follows of its key, "+
			"and retried there: fix its handler", fmt.Errorf("%d failures in a row", it.Failures),
			watermill.LogFields{"offset": it.Pos, "failing_since": it.Since})
	}
	return toPark, key
}

// drains says whether the head of a key waits in memory until nothing of it is parked, as a handler has lately done
// something of it. What waits holds the offset: so not while the partition has been paused for After, and by turns,
// between which the key is parked on and the offset follows.
func (p *partition) drains(k *parked, now time.Time) bool {
	after := p.lot.cfg.After
	switch {
	case k.rows > drainRows, k.moved.IsZero(), now.Sub(k.moved) >= after:
		return false
	case !p.paused.IsZero() && now.Sub(p.paused) >= after:
		return false
	case k.drains.IsZero():
		k.drains = now
	}
	const turn = notPaused
	return now.Sub(k.drains)%(2*turn*after) < turn*after
}

func (p *partition) overdue(it *item, now time.Time) bool {
	failing := now.Sub(it.Since)
	return it.Failures > 0 && (failing >= p.lot.cfg.After && !p.paused.IsZero() || failing >= notPaused*p.lot.cfg.After)
}

// storing notes that a message of a key begins to be stored, or that this has ended.
func (p *partition) storing(key string, begins bool) {
	k := p.parking.keys[key]
	if k == nil {
		return
	}
	if k.busy = begins; begins {
		k.stores++
	}
}

// store parks a message instead of handing it out.
func (p *partition) store(it *item, rec record, key string, again bool) {
	r := result{item: it, again: again, stored: key, Outcome: inbound.Outcome{Verdict: inbound.Acked}}
	if err := p.lot.store(p.subscription.ctx, rec, key); err != nil {
		p.lot.tellStore(err, rec.msg.Offset)
		r.Verdict = inbound.Nacked
	}
	select {
	case p.results <- r:
	case <-p.abandoned:
		p.free(again)
	}
}

// look asks, about each second, what became of the keys that are parked.
func (p *partition) look() {
	if p.lot == nil || p.stopped || !p.parking.loaded {
		return
	}
	if it := p.window.Oldest(); it != nil && !it.Value.unkeyed && p.overdue(it, time.Now()) && p.lot.room() {
		p.window.Hurry(it, time.Now()) // its handler may have asked for hours, which it keeps in the park
	}
	if p.parking.looking || len(p.parking.keys) == 0 && p.lot.keyless.Load() == 0 {
		return
	}
	p.parking.looking = true
	p.lot.looks.ask(p.subscription.ctx, glance{began: p.known()}, p.parking.looks)
}

// known is what a look begins with.
func (p *partition) known() map[string]parked {
	keys := make(map[string]parked, len(p.parking.keys))
	for key, k := range p.parking.keys {
		keys[key] = *k
	}
	return keys
}

// see lets a key go of which nothing is parked: all of it that was read before the look is done. What was stored since,
// or may be on its way, keeps it.
func (p *partition) see(g glance) {
	p.parking.looking = false
	if g.err != nil {
		p.logger.Debug("could not look at parked keys", watermill.LogFields{"err": g.err.Error()})
		return
	}
	for key, began := range g.began {
		k := p.parking.keys[key]
		pile, rows := g.piles[key]
		switch {
		case k == nil:
		case !rows && !began.busy && !k.busy && k.stores == began.stores:
			p.unpark(key)
		case !rows: // what is stored now comes behind what was done
			k.rows = 0
			if k.oldest != 0 {
				k.moved = time.Now()
			}
		default:
			if k.oldest != 0 && pile.oldest > k.oldest {
				k.moved = time.Now()
			}
			k.pile = pile
		}
	}
}
