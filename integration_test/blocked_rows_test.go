package integration_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// TestOneRowStopsNoOther: whatever a row contains, the others are read and settled.
func TestOneRowStopsNoOther(t *testing.T) {
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		w := startForwarderOn(t, h, quickConfig(), func(_ string, msg *message.Message) error {
			if string(msg.Payload) == "refused" {
				return errRefused
			}
			return nil
		})
		const insert = "insert into outbox (uuid, topic, key, payload, created_at, attempts, due_at) values ($1, 'orders', " +
			"$2, $3, $4::text::timestamptz, $5, $6::text::timestamptz)"
		for _, at := range []string{"infinity", "-infinity", "4713-01-01 BC", "294276-12-31"} {
			h.exec(t, insert, at, "K"+at, []byte(at), at, 0, nil)
		}
		h.exec(t, insert, "most", "L", []byte("refused"), "now", 2147483647, "now")
		h.exec(t, insert, "never", "M", []byte("never"), "now", 1, "infinity")
		h.exec(t, insert, "long ago", "N", []byte("long ago"), "now", 1, "-infinity")
		w.publish(t, "orders", "O", "refused")
		w.publish(t, "orders", "P", "good")
		w.arrives(t, "good", "infinity", "-infinity", "4713-01-01 BC", "294276-12-31", "long ago")
		eventually(t, func() bool {
			return h.count(t, "select count(*) from outbox where key = 'O' and attempts > 1") == 1 &&
				h.count(t, "select count(*) from outbox where published_at is not null") == 6
		}, "failures and successes are settled")
		assert.Equal(t, 2147483647, h.count(t, "select attempts from outbox where uuid = 'most'"))
	})
}

// TestRetriesThatAreFarAhead: failed messages that were postponed by hand before a forwarder took their lanes, until
// after the longest duration of Go or until never, are not published.
func TestRetriesThatAreFarAhead(t *testing.T) {
	h := onPgx(t)
	for _, at := range []string{"now", "2400-01-01", "9999-12-31", "294276-12-31", "infinity"} {
		h.exec(t, "insert into outbox (uuid, topic, key, payload, attempts, due_at) "+
			"values ($1, 'orders', $1, $1::text::bytea, 1, $1::text::timestamptz)", at)
	}
	w := startForwarder(t, h, quickConfig())
	w.arrives(t, "now")
	w.idle(t)
	assert.Equal(t, []string{"now"}, w.payloads())
}

// TestRowThatCannotBeSettled: a trigger refuses one row of many, among published and among failed ones.
func TestRowThatCannotBeSettled(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `create function refuse() returns trigger language plpgsql as $$ begin raise 'not this one'; end $$`)
	h.exec(t, `create trigger refuse before update on outbox for each row when (new.id in (17, `+
		`77)) execute function refuse()`)
	h.publish(t, "orders", "", numbered("good", 1, 50)...)
	h.publish(t, "orders", "", numbered("bad", 51, 100)...)
	cfg := quickConfig()
	cfg.Backoff = outbox.Backoff{Initial: time.Hour, Max: time.Hour}
	told := &settledCounter{}
	w := startForwarderOn(t, h.seenBy(t, told), cfg, func(_ string, msg *message.Message) error {
		if msg.Payload[0] == 'b' {
			return errRefused
		}
		return nil
	})
	settled := func(n int) func() bool {
		return func() bool {
			return h.count(t, "select count(*) from outbox where published_at is not null or attempts > 0") == n
		}
	}
	eventually(t, settled(98), "all others are settled")
	w.publish(t, "orders", "", "good-later")
	eventually(t, settled(99), "and so are later ones")
	eventually(t, func() bool { return w.log.count("settling messages one by one") == 1 }, "it is logged once")
	h.exec(t, "drop trigger refuse on outbox")
	eventually(t, settled(101), "these two as well once possible")
	eventually(t, func() bool { return told.done.Load() >= 51 && told.failed.Load() >= 50 }, "observers are notified")
	assert.Equal(t, []int64{51, 50}, []int64{told.done.Load(), told.failed.Load()},
		"unsettled messages were counted")
}

// TestStopWithALockedRow: when the forwarder stops, a locked row does not prevent the results of others from being
// recorded.
func TestStopWithALockedRow(t *testing.T) {
	h := onPgx(t)
	h.exec(t, "insert into outbox (uuid, topic, payload) select i, 'orders', 'x' from generate_series(1, 5000) i")
	tx, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background())
	_, err = tx.Exec(t.Context(), "select from outbox where id = 4711 for update")
	require.NoError(t, err)
	cfg := quickConfig()
	cfg.QueryTimeout, cfg.ReadAhead, cfg.Concurrency = 5*time.Second, 10000, 5000
	goOn := make(chan struct{})
	broker, log := newFakeBroker(), newLogCapture(t)
	broker.answers(func(string, *message.Message) error { <-goOn; return nil })
	f, err := forwarder.New(h.db, broker, cfg, log)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	broker.wait(t, "all are being published", func() bool { return broker.triedTimes("x") == 5000 })
	cancel()
	close(goOn)
	require.NoError(t, <-ended)
	assert.Equal(t, []int64{4711}, column[int64](t, h, "select id from outbox where published_at is null"))
	assert.Equal(t, 1, log.count("stopped before all results were written"))
}

// TestHeadsAreLoadedInPages: a lane with very many blocked keys does not delay the start of other lanes.
func TestHeadsAreLoadedInPages(t *testing.T) {
	parallel(t)
	url := newMigratedDatabase(t)
	h, gate := newStatementGate(t, url)
	defer gate.releaseAll()
	h.exec(t, `insert into outbox (uuid, topic, key, payload, attempts, due_at)
		select i, 'orders', 'K' || i, 'x', 1, now() + interval '1 hour' from generate_series(1, 600000) i
		 where hashtext('K' || i) & 63 = 7 limit 7000`)
	key := func(lane int) string {
		return value[string](t, h, "select 'key-' || i from generate_series(1, 100000) i where hashtext('key-' || i) & "+
			"63 = $1 order by i limit 1", lane)
	}
	h.publish(t, "orders", key(8), "another lane")
	h.publish(t, "orders", key(7), "that lane")
	behind := value[string](t, h, "select min(key) from outbox where attempts > 0")
	h.publish(t, "orders", behind, "behind")
	second := gate.hold(sqltext.LoadBlocked, 1)
	w := startForwarder(t, h, quickConfig())
	within(t, "the second page of blocked keys is loaded", second.arrived)
	w.arrives(t, "another lane")
	assert.NotContains(t, w.payloads(), "that lane", "its blocked keys are not loaded yet")
	gate.release(second)
	w.arrives(t, "that lane")
	w.idle(t)
	assert.NotContains(t, w.payloads(), "behind")
}

// TestWhatIsSettledTogether: messages are settled as a range of ids. A message in the range that was committed later is
// not settled with them.
func TestWhatIsSettledTogether(t *testing.T) {
	t.Parallel()
	for name, retention := range map[string]time.Duration{"kept": 0, "deleted": -1} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			h, gate := newStatementGate(t, newMigratedDatabase(t))
			defer gate.releaseAll()
			cfg := quickConfig()
			cfg.QueryTimeout, cfg.Retention = time.Minute, retention
			goOn := make(chan struct{})
			w := startForwarderOn(t, h, cfg, func(_ string, msg *message.Message) error {
				if msg.Payload[0] == 'l' {
					<-goOn
				}
				return nil
			})
			w.idle(t)
			settling := gate.holdSettling()
			w.publish(t, "orders", "", "first") // blocks the settler until all others are published
			w.arrives(t, "first")
			gate.arrives(t, "the message is about to be settled", settling...)
			before, after := numbered("before", 1, 100), numbered("after", 1, 100)
			w.publish(t, "orders", "", before...)
			late, err := h.pool.Begin(t.Context())
			require.NoError(t, err)
			defer late.Rollback(context.Background())
			_, err = late.Exec(t.Context(), insertPlain, "late", "orders", "", "late")
			require.NoError(t, err)
			w.publish(t, "orders", "", after...)
			w.arrives(t, slices.Concat(before, after)...)
			require.NoError(t, late.Commit(t.Context()))
			w.wait(t, "the late one is being published", func() bool { return tried(w, []string{"late"}) == 1 })
			spans := gate.holdSpans()
			gate.release(settling...)
			gate.arrives(t, "the others are settled as a range", spans...)
			gate.release(spans...)
			const left = "select coalesce(string_agg(convert_from(payload, 'UTF8'), ' '), '') from outbox " +
				"where published_at is null"
			eventually(t, func() bool { return len(value[string](t, h, left)) < len("late late") }, "the others are settled")
			require.Equal(t, "late", value[string](t, h, left), "settled before it was published")
			close(goOn)
			w.arrives(t, "late")
			w.idle(t)
			assert.Zero(t, h.count(t, "select count(*) from outbox where published_at is null"))
		})
	}
}
