package integration_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// TestIdsThatAreHandedOutAgain: while messages are being published, their ids are given to others, before anybody reads
// again, and where the sequence says less than before, also after the next read. The others are published as well, and
// what was being published settles none of them. setval leaves the sequence's file as it is, so only its value tells.
func TestIdsThatAreHandedOutAgain(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	const setBack = "delete from outbox; select setval('outbox_id_seq', 1, false)"
	for name, way := range map[string]struct {
		again     string
		others    int
		readFirst bool
	}{
		"set back, before the next read": {setBack, 10, false},
		"set back, after it":             {setBack, 10, true},
		"truncate":                       {"truncate outbox restart identity", 50, false},
		"restart":                        {"delete from outbox; alter sequence outbox_id_seq restart", 50, false},
		"restored":                       {dropTables, 50, false},
	} {
		t.Run(name, func(t *testing.T) {
			if way.again != setBack {
				extended(t)
			}
			t.Parallel()
			forEachRetention(t, func(t *testing.T, cfg forwarder.Config) {
				t.Parallel()
				url := newMigratedDatabase(t)
				other := newPgxHandle(t, url) // nobody is woken by what it writes
				h, gate := newStatementGate(t, url)
				defer gate.releaseAll()
				settled := &settledCounter{}
				h = h.seenBy(t, settled)
				cfg.DisableListen = true
				goOn, goOnToo := make(chan struct{}), make(chan struct{})
				w := startForwarderOn(t, h, cfg, func(_ string, msg *message.Message) error {
					switch msg.Payload[0] {
					case 'o':
						<-goOn
					case 'n':
						<-goOnToo
					}
					return nil
				})
				old := numbered("old", 1, 20)
				w.publish(t, "orders", "", old...)
				w.wait(t, "all are being published", func() bool { return tried(w, old) == 20 })
				reads := gate.holdReads()
				gate.arrives(t, "a read", reads...)

				other.exec(t, way.again)
				if name == "restored" {
					require.NoError(t, makeTables(t.Context(), other.db))
				}
				found := numbered("new", 1, way.others)
				other.publish(t, "orders", "", found...)
				require.Equal(t, way.others, h.count(t, "select max(id)::int from outbox"), "the ids were not handed out again")
				if way.readFirst {
					gate.release(reads...)
					w.wait(t, "the new ones are being published", func() bool { return tried(w, found) == way.others })
				}
				close(goOn)
				w.arrives(t, old...)
				eventually(t, func() bool { return settled.n.Load() == 20 }, "the old ones are settled")
				assert.Equal(t, way.others, h.count(t, "select count(*) from outbox where published_at is null"))

				gate.release(reads...)
				close(goOnToo)
				w.arrives(t, found...)
				w.idle(t)
				assert.Zero(t, h.count(t, "select count(*) from outbox where published_at is null"))
			})
		})
	}
}

// TestEpochsAreUsedOnce: a server that lost its last commits, or was restored, has older epochs. A lane that is taken
// again gets none that it had before, so a failure that was found under that charges nobody.
func TestEpochsAreUsedOnce(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	failures := failuresSettled{news: make(chan struct{}, 10)}
	h, gate := newStatementGate(t, newMigratedDatabase(t))
	defer gate.releaseAll()
	h = h.seenBy(t, failures)
	cfg := quickConfig()
	cfg.QueryTimeout = time.Minute
	failed := gate.hold(sqltext.SettleFailed, 0)
	again := make(chan struct{})
	var tries atomic.Int32
	w := startForwarderOn(t, h, cfg, func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "K-1" {
			if tries.Add(1) == 1 {
				return errRefused
			}
			<-again
		}
		return nil
	})
	w.publish(t, "orders", "K", "K-1", "K-2")
	gate.arrives(t, "the failure is to be settled", failed)
	before := h.count(t, "select max(epoch)::int from outbox_lanes")
	h.exec(t, "with life as (delete from outbox_life) update outbox_lanes set epoch = epoch - 1")
	w.wait(t, "K-1 is tried in the new life", func() bool { return w.triedTimes("K-1") == 2 })
	assert.Greater(t, h.count(t, "select min(epoch)::int from outbox_lanes"), before)
	gate.release(failed)
	<-failures.news
	assert.Zero(t, h.count(t, "select count(*) from outbox where attempts > 0"))
	close(again)
	w.arrives(t, "K-1", "K-2")
	assert.Equal(t, numbered("K-", 1, 2), w.payloads("K"))
}
