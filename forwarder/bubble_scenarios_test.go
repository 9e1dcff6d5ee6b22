package forwarder

import (
	"errors"
	"strings"
	"time"
)

// bubbleScenario is a sequence of events around the running forwarders.
type bubbleScenario struct {
	name    string
	runs    face
	calm    bool          // nothing is published twice unless there is a fault
	writes  time.Duration // 0 = before the forwarders start
	atOnce  int           // concurrent publishes; 0 = the default
	happens func(b *bubble)
}

// Messages are written for three seconds, in transactions of up to one second.
var bubbleScenarios = []bubbleScenario{
	{"drain", forwarders(1), true, 0, 0, (*bubble).drain},
	{"two forwarders share the lanes and one stops", forwarders(2), false, 3 * time.Second, 0, func(b *bubble) {
		time.Sleep(2 * time.Second)
		b.forwarders[1].stop()
	}},
	{"the broker is down", forwarders(1), true, 3 * time.Second, 0, func(b *bubble) {
		time.Sleep(time.Second)
		b.broker.set(func(string, string) error { return &PublishError{Verdict: Unavailable, Err: errAway} })
		time.Sleep(4 * time.Second)
		b.broker.set(nil)
	}},
	{"some messages are refused", forwarders(1), true, 3 * time.Second, 0, func(b *bubble) {
		b.refuseSome(4 * time.Second)
	}},
	{"the network of one forwarder is down", forwarders(2), false, 3 * time.Second, 0, func(b *bubble) {
		b.refuseSome(20 * time.Second)
		b.leaves(0, 4*time.Second)
	}},
	{"the network of one busy forwarder is down", forwarders(2), false, 3 * time.Second, 1, func(b *bubble) {
		b.broker.set(func(string, string) error { // no call is slow
			if time.Since(b.began) < 25*time.Second {
				time.Sleep(slowAfter * 9 / 10)
			}
			return nil
		})
		b.leaves(0, 8*time.Second)
	}},
	{"the server crashes", forwarders(1), false, 3 * time.Second, 0, func(b *bubble) {
		time.Sleep(1500 * time.Millisecond)
		b.server.crash()
	}},
	{"publishes are slow, and one hangs", forwarders(1), false, 3 * time.Second, 0, func(b *bubble) {
		b.broker.set(func(key, uuid string) error {
			switch {
			case uuid == "key-1/2" && time.Since(b.began) < 5*time.Second:
				time.Sleep(50 * time.Second) // longer than PublishTimeout
			case key == "key-2":
				time.Sleep(2 * time.Second)
			}
			return nil
		})
		time.Sleep(60 * time.Second)
	}},
	{"a forwarder stops while a row is locked", forwarders(2), false, 3 * time.Second, 0, func(b *bubble) {
		time.Sleep(time.Second)
		b.server.lockFirst(func() {
			time.Sleep(500 * time.Millisecond)
			b.forwarders[0].stop()
			time.Sleep(3 * time.Second)
		})
	}},
	{"writers' commits get no response", forwarders(1), true, 0, 0, func(b *bubble) { b.publishUnanswered() }},
	{"some messages are nacked, and one subscriber stops", subscribers(2), false, 3 * time.Second, 0, func(b *bubble) {
		b.refuseSome(4 * time.Second)
		time.Sleep(2 * time.Second)
		b.forwarders[1].stop()
	}},
	{"the network of a subscriber is down while its handler is busy", subscribers(2), false, 3 * time.Second, 0,
		func(b *bubble) {
			b.broker.set(func(string, string) error {
				if time.Since(b.began) < 25*time.Second {
					time.Sleep(slowAfter * 9 / 10)
				}
				return nil
			})
			b.leaves(0, 2*time.Second)
		}},
	{"a group is drained", groupOf(2), true, 0, 0, (*bubble).drain},
	{"one database of a group is down", groupOf(2), true, 20 * time.Second, 0, func(b *bubble) {
		for !b.forwarders[1].pool.hasJoined() && time.Since(b.began) < 20*time.Second {
			time.Sleep(10 * time.Millisecond)
		}
		b.forwarders[1].pool.setAway(true) // while it is busy
		time.Sleep(25 * time.Second)
		if n := b.server.pending(); n > 0 && b.fault.kind == 0 {
			b.t.Errorf("%d messages are pending in the database that is up", n)
		}
		b.forwarders[1].pool.setAway(false)
	}},
}

// drain checks that Drain returns only after everything is published.
func (b *bubble) drain() {
	switch err := b.forwarders[0].drain(); {
	case err == nil && b.pending() > 0:
		b.t.Errorf("Drain returned while %d messages are pending", b.pending())
	case err != nil && b.fault.kind == 0:
		b.t.Error("Drain:", err)
	}
}

// leaves takes a forwarder's network down for longer than its lease.
func (b *bubble) leaves(number int, at time.Duration) {
	time.Sleep(at)
	b.forwarders[number].pool.setAway(true)
	time.Sleep(leaseOfBubbles + 5*time.Second)
	b.forwarders[number].pool.setAway(false)
}

// refuseSome makes the broker refuse the third message of each key for some time.
func (b *bubble) refuseSome(during time.Duration) {
	b.broker.set(func(_, uuid string) error {
		if strings.HasSuffix(uuid, "/3") && time.Since(b.began) < during {
			return &PublishError{Verdict: Retry, Err: errors.New("refused")}
		}
		return nil
	})
}

var errAway = errors.New("the broker is down")
