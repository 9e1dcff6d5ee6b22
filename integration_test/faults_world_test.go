//go:build unix

package integration_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// long makes the crash tests run for many more rounds.
var long = os.Getenv("OUTBOX_LONG") != ""

// rounds is how often to repeat something.
func rounds(short, extended int) int {
	if long {
		return extended
	}
	return short
}

// someOf are each fourth of n steps, from a random one on, and all of them in the long variant.
func someOf(t testing.TB, n int) (steps []int) {
	first, each := 0, 1
	if !long {
		each = 4
		first = rand.IntN(each)
		t.Logf("each %dth step from %d on", each, first)
	}
	for step := first; step < n; step += each {
		steps = append(steps, step)
	}
	return steps
}

// crashWorld is a database, a source of orders, a broker, and the worker processes between them. The database, the
// source and the broker are never wrong about what they were told; workers come and go.
type crashWorld struct {
	t      testing.TB
	h      handle
	shop   shop
	source *source
	broker *broker
	pooler string // URL of a PgBouncer before it, for workers with that handle; "" = that of the shared server

	mu      sync.Mutex
	workers []*worker
	spawned int
	wrong   []string
}

// newCrashWorld makes a world in an empty database.
func newCrashWorld(t testing.TB, h handle, keys int) *crashWorld {
	t.Helper()
	require.NoError(t, makeTables(t.Context(), h.db))
	makeShop(t, h, keys)
	shop, err := newShop(h.db)
	require.NoError(t, err)
	w := &crashWorld{t: t, h: h, shop: shop, source: newSource(keys), broker: newBroker()}
	t.Cleanup(func() {
		for _, p := range w.workers {
			if !p.ended() {
				p.kill()
			}
			if t.Failed() {
				t.Logf("%s: %v\n%s", p.cfg.Name, p.exit, p.log)
			}
		}
	})
	return w
}

func (w *crashWorld) fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

// check verifies what must hold at every moment, whatever has crashed.
func (w *crashWorld) check(round string) {
	w.t.Helper()
	var wrong []string
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	zero := func(what, query string) {
		if n := w.h.count(w.t, query); n != 0 {
			bad("%d %s", n, what)
		}
	}

	// What the source and the broker know first, then what the database knows: it may only know more.
	acked, arrived := w.source.ackedOrders(), w.broker.arrivals()
	booked := set(column[string](w.t, w.h, `select order_id from bookings`))
	dead := set(column[string](w.t, w.h, `select message_id from inbox where dead_at is not null`))
	for id, kind := range acked {
		if kind == kindPoison && !dead[id] || kind != kindPoison && !booked[id] {
			bad("order %s %s was acked and is lost", id, kind)
		}
	}
	committed := set(column[string](w.t, w.h, `select uuid from events
		union select o.uuid from outbox o join inbox i on i.message_id = o.metadata->>'uuid_poisoned' where i.dead_at is not null`))
	for uuid := range arrived {
		if !committed[uuid] {
			bad("message %s was published and never committed", uuid)
		}
	}
	// The other way round for what claims to be published.
	settled := column[string](w.t, w.h, `select uuid from outbox where published_at is not null`)
	arrived = w.broker.arrivals()
	for _, uuid := range settled {
		if _, ok := arrived[uuid]; !ok {
			bad("message %s is settled and was never published", uuid)
		}
	}
	zero("orders were booked twice", `select count(*) from (select from bookings group by order_id `+
		`having count(*) > 1) twice`)
	zero("orders are in the inbox or among the bookings only",
		`select count(*) from (select message_id from inbox where processed_at is not null and consumer like '%book') i
		 full join bookings b on b.order_id = i.message_id where i.message_id is null or b.order_id is null`)
	zero("poison orders were booked",
		`select count(*) from inbox i join bookings b on b.order_id = i.message_id where i.dead_at is not null`)
	zero("messages are in the outbox or among what was committed only",
		`select count(*) from (select uuid from events union all select message_id from inbox where dead_at is not null) e
		 full join (select coalesce(metadata->>'uuid_poisoned', uuid) as uuid from outbox) o on o.uuid = e.uuid where o.uuid is null or e.uuid is null`)
	zero("messages are in the outbox twice", `select count(*) - count(distinct uuid) from outbox`)

	w.broker.mu.Lock()
	wrong = append(wrong, w.broker.wrong...)
	w.broker.mu.Unlock()
	w.mu.Lock()
	wrong = append(wrong, w.wrong...)
	w.mu.Unlock()
	if len(wrong) > 0 {
		w.t.Fatalf("%s: %d things are wrong:\n%s", round, len(wrong), strings.Join(wrong[:min(len(wrong), 10)], "\n"))
	}
}

// finish waits until nothing is left to do, which the workers that are alive must manage, and checks that
// nothing is missing.
func (w *crashWorld) finish() {
	w.t.Helper()
	eventually(w.t, w.source.exhausted, "all orders acked")
	w.settle("at the end")
	acked := w.source.ackedOrders()
	require.Len(w.t, acked, w.source.made, "an order was never acked")
	w.check("at the end")
	w.t.Logf("%d orders, %d copies of them; %d messages, %d copies of them; %d worker processes",
		w.source.made, w.source.copies, len(w.broker.arrivals()), w.broker.duplicates(), w.spawned)
}

// settle waits until all that was committed is published and settled.
func (w *crashWorld) settle(when string) {
	w.t.Helper()
	const pending = `select count(*) from outbox where published_at is null`
	deadline := time.Now().Add(patience)
	for w.h.count(w.t, pending) > 0 {
		if time.Now().After(deadline) {
			w.check(when)
			w.t.Fatalf("%s: %d messages are not settled, %d of them dead: %v", when, w.h.count(w.t, pending),
				w.h.count(w.t, pending+` and dead_at is not null`),
				column[string](w.t, w.h, `select format('%s %s lane %s attempts %s due in %s: %s', id, key, lane, attempts,
					due_at - clock_timestamp(), last_error) from outbox where published_at is null order by id limit 20`))
		}
		time.Sleep(20 * time.Millisecond)
	}
	arrived := w.broker.arrivals()
	for _, uuid := range column[string](w.t, w.h, `select uuid from outbox`) {
		if _, ok := arrived[uuid]; !ok {
			w.t.Fatalf("%s: message %s was never published", when, uuid)
		}
	}
}

// lanes returns how many lanes a worker owns.
func (w *crashWorld) lanes(p *worker) int {
	w.t.Helper()
	return w.h.count(w.t, `select count(*) from outbox_lanes l join outbox_forwarders f on f.id = l.owner `+
		`where f.name = $1`, p.cfg.Name)
}

func set(list []string) map[string]bool {
	m := make(map[string]bool, len(list))
	for _, s := range list {
		m[s] = true
	}
	return m
}
