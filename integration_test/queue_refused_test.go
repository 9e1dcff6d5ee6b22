package integration_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/queue"
)

// refuser is a trigger that refuses updates of the messages whose ids end with 7.
const refuser = `CREATE FUNCTION refuses() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF %s THEN RAISE EXCEPTION 'refused' USING ERRCODE = 'P0001'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuses BEFORE UPDATE ON inbox_queue FOR EACH ROW
  WHEN (NEW.message_id LIKE '%%7') EXECUTE FUNCTION refuses()`

// TestRefusedMessagesStopNoOther: a trigger of the database's owner refuses one of the queue's statements for 10% of
// the messages. All others are handled, and the rest after it is dropped. TestDoctorOfABusyQueue has a constraint
// instead, and TestRefusesRow has all codes.
func TestRefusedMessagesStopNoOther(t *testing.T) {
	parallel(t)
	const messages = 60
	trigger := func(condition string) string { return fmt.Sprintf(refuser, condition) }
	swallows := func(condition string) string {
		return strings.Replace(trigger(condition), `RAISE EXCEPTION 'refused' USING ERRCODE = 'P0001'`, `RETURN NULL`, 1)
	}
	atCommit := func(condition string) string { // after all rows were returned
		return strings.Replace(strings.Replace(trigger(condition), "CREATE TRIGGER", "CREATE CONSTRAINT TRIGGER", 1),
			"BEFORE UPDATE ON inbox_queue", "AFTER UPDATE ON inbox_queue DEFERRABLE INITIALLY DEFERRED", 1)
	}
	for name, c := range map[string]struct {
		install  string
		prepare  string // changes the messages first
		detached bool
		slow     bool // handlers wait until other leases are renewed; those of refused messages until the cure
		onDead   bool
		left     string // messages left before the cure
		once     bool   // no handler is called twice
		always   bool   // make test runs it: one case for each statement and each way to refuse
	}{
		"claim": {
			always: true, install: trigger(`NEW.owner IS NOT NULL`),
			left: `state = 'processing'`, once: true,
		},
		"ack": {install: trigger(`NEW.state = 'done'`), left: `state = 'processing'`, once: true},
		"ack detached": {
			always: true, install: trigger(`NEW.state = 'done'`),
			left: `state = 'processing'`, detached: true, once: true,
		},
		"renew": {
			always:  true,
			install: trigger(`NEW.owner = OLD.owner AND NEW.locked_until > OLD.locked_until`), detached: true, slow: true,
			left: `state = 'processing'`,
		},
		"claim at commit": {
			always:  true,
			install: atCommit(`NEW.owner IS NOT NULL`), detached: true,
			left: `state = 'processing' AND owner IS NULL`, once: true,
		},
		"claim swallowed": {
			install: swallows(`NEW.owner IS NOT NULL`),
			left:    `state = 'processing'`, once: true,
		},
		"ack swallowed": {
			always: true, install: swallows(`NEW.state = 'done'`),
			left: `state = 'processing'`, once: true,
		},
		"ack swallowed detached": {
			install: swallows(`NEW.state = 'done'`),
			left:    `state = 'processing'`, detached: true, once: true,
		},
		"renew swallowed": {
			install: swallows(`NEW.owner = OLD.owner AND NEW.locked_until > OLD.locked_until`), detached: true, slow: true,
			left: `state = 'processing'`,
		},
		"reap swallowed": {
			install: swallows(`OLD.owner IS NOT NULL AND NEW.owner IS NULL AND NEW.state = 'processing'`),
			prepare: `UPDATE inbox_queue SET owner = gen_random_uuid(), locked_until = now() - interval '1 second'`,
			left:    `state = 'processing'`, once: true,
		},
		"expire swallowed": {
			install: swallows(`NEW.state = 'dead'`), prepare: `UPDATE inbox_queue SET expires_at = now() - interval '1 second'`,
			left: `state = 'processing'`,
		},
		"claim expired swallowed": {
			install: swallows(`NEW.owner IS NOT NULL`), onDead: true,
			prepare: `UPDATE inbox_queue SET expires_at = now() - interval '1 second'`, left: `state = 'processing'`,
		},
		"renew at commit": {
			install: atCommit(`NEW.owner = OLD.owner AND NEW.locked_until > OLD.locked_until`), detached: true, slow: true,
			left: `state = 'processing'`,
		},
		"reap": {
			always:  true,
			install: trigger(`OLD.owner IS NOT NULL AND NEW.owner IS NULL AND NEW.state = 'processing'`),
			prepare: `UPDATE inbox_queue SET owner = gen_random_uuid(), locked_until = now() - interval '1 second'`,
			left:    `state = 'processing'`, once: true,
		},
		"expire": {
			always:  true,
			install: trigger(`NEW.state = 'dead'`), prepare: `UPDATE inbox_queue SET expires_at = now() - interval '1 second'`,
			left: `state = 'processing'`,
		},
		"claim expired": {
			always:  true,
			install: trigger(`NEW.owner IS NOT NULL`), onDead: true,
			prepare: `UPDATE inbox_queue SET expires_at = now() - interval '1 second'`, left: `state = 'processing'`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if !c.always {
				extended(t)
			}
			h := onPgx(t)
			log := &lineLogger{}
			s, err := queue.NewStore(h.db, quickStore(), log)
			require.NoError(t, err)
			all := items("orders", messages)
			all[0].Payload, all[1].Payload = nil, nil
			storeAll(t, s, all...)
			if c.prepare != "" {
				h.exec(t, c.prepare)
			}
			h.exec(t, c.install)
			refused := h.count(t, `SELECT count(*) FROM inbox_queue WHERE message_id LIKE '%7'`)
			require.EqualValues(t, messages/10, refused)
			var mu sync.Mutex
			renewed, cured := make(chan struct{}), make(chan struct{})
			calls := map[queue.ID]int{}
			cfg := quickDispatcher(map[string]queue.Handler{"orders": {
				Detached: c.detached,
				Handle: func(ctx context.Context, msg *queue.Message) error {
					mu.Lock()
					calls[msg.ID]++
					mu.Unlock()
					if !c.slow {
						return nil
					}
					goesOn := renewed
					if strings.HasSuffix(msg.MessageID, "7") {
						goesOn = cured
					}
					select {
					case <-ctx.Done():
						return context.Cause(ctx)
					case <-goesOn:
						return nil
					}
				},
			}})
			switch cfg.LeaseTTL = 15 * time.Second; { // longer than any handler takes; renewed after a third
			case c.slow:
				cfg.Concurrency = 2 * messages
			case !c.once: // expired messages are searched for twice per lease
				cfg.LeaseTTL = 2 * time.Second
			}
			if c.onDead {
				cfg.OnDead = func(context.Context, *queue.Message, error) error { return nil }
			}
			d, err := queue.NewDispatcher(s, cfg, log)
			require.NoError(t, err)
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- d.Run(ctx) }()
			defer func() {
				stop()
				assert.NoError(t, <-ended)
			}()
			begun := time.Now()
			settled := func(where string) bool {
				return h.count(t, `SELECT count(*) FROM inbox_queue WHERE state IN ('done', 'dead') AND message_id `+where) ==
					h.count(t, `SELECT count(*) FROM inbox_queue WHERE message_id `+where)
			}
			if c.slow {
				const others = `SELECT count(*) FROM inbox_queue WHERE owner IS NOT NULL AND message_id NOT LIKE '%7'`
				eventually(t, func() bool { return h.count(t, others) == messages-refused }, "all others are claimed")
				claimed := value[time.Time](t, h, `SELECT max(locked_until) FROM inbox_queue`)
				eventually(t, func() bool {
					return h.count(t, others+` AND locked_until > $1`, claimed) == messages-refused
				}, "the leases of all others are renewed")
				close(renewed)
			}
			eventually(t, func() bool { return settled(`NOT LIKE '%7'`) }, "all others are handled")
			t.Logf("the others were handled after %s", time.Since(begun))
			if c.left != "" {
				assert.EqualValues(t, refused,
					h.count(t, `SELECT count(*) FROM inbox_queue WHERE message_id LIKE '%7' AND `+c.left))
				eventually(t, func() bool {
					return log.has("ERROR", "message refused by the database", "topic:orders", "message_id:orders-", "sqlstate:")
				}, "a log line shows why")
			}
			close(cured)
			h.exec(t, `DROP TRIGGER IF EXISTS refuses ON inbox_queue`)
			eventually(t, func() bool { return settled(`LIKE '%7'`) }, "the rest is handled after the cure")
			mu.Lock()
			defer mu.Unlock()
			for id, n := range calls {
				if c.once && n > 1 {
					assert.Failf(t, "called twice", "%v: %d", id, n)
				}
			}
		})
	}
}

// TestRefusedBehindABusyTopic: a message is refused while the free slots of its Dispatcher cannot be used by the many
// messages before it.
func TestRefusedBehindABusyTopic(t *testing.T) {
	h := onPgx(t)
	s, busy := storeOn(t, h, quickStore()), make(chan struct{})
	storeAll(t, s, items("busy", 1000)...)
	storeAll(t, s, items("orders", 20)...)
	h.exec(t, fmt.Sprintf(refuser, `NEW.topic = 'orders'`))
	cfg := quickDispatcher(map[string]queue.Handler{
		"busy": {Concurrency: 2, Detached: true, Handle: func(context.Context, *queue.Message) error {
			<-busy
			return nil
		}},
		"orders": {Handle: func(context.Context, *queue.Message) error { return nil }},
	})
	cfg.Concurrency = 10
	dispatching(t, s, cfg)
	t.Cleanup(func() { close(busy) })
	h.reaches(t, 18, "all but two are handled",
		`SELECT count(*) FROM inbox_queue WHERE topic = 'orders' AND state = 'done'`)
}

// TestThousandsOfRefusedMessages: messages behind thousands of refused ones do not wait until each of these has been
// tried.
func TestThousandsOfRefusedMessages(t *testing.T) {
	extended(t)
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	for range 3 {
		batch := items("refused", 1000)
		for i := range batch {
			batch[i].MessageID = watermill.NewUUID() + "7"
		}
		storeAll(t, s, batch...)
	}
	storeAll(t, s, items("orders", 300)...)
	h.exec(t, fmt.Sprintf(refuser, `NEW.topic = 'refused'`))
	handle := queue.Handler{Handle: func(context.Context, *queue.Message) error { return nil }}
	cfg := quickDispatcher(map[string]queue.Handler{"refused": handle, "orders": handle})
	cfg.Concurrency = 10
	begun := time.Now()
	dispatching(t, s, cfg)
	done := func() int {
		return h.count(t, `SELECT count(*) FROM inbox_queue WHERE topic = 'orders' AND state = 'done'`)
	}
	eventually(t, func() bool { return done() >= 100 }, "some others are handled")
	t.Logf("100 others were handled after %s", time.Since(begun))
	eventually(t, func() bool { return done() == 300 }, "all others are handled")
	t.Logf("all others were handled after %s", time.Since(begun))
}

// TestMissingRightsRefuseNoRow: an error about the whole table is reported once, as such.
func TestMissingRightsRefuseNoRow(t *testing.T) {
	h := onPgx(t)
	log := &lineLogger{}
	s, err := queue.NewStore(h.db, quickStore(), log)
	require.NoError(t, err)
	owner := queue.NewOwner()
	storeAll(t, s, items("orders", 20)...)
	h.exec(t, `ALTER TABLE inbox_queue RENAME TO elsewhere`)
	_, err = s.Claim(t.Context(), queue.Claim{Owner: owner, LeaseTTL: time.Minute, Limit: 20})
	assert.Equal(t, text.UndefinedTable, text.SQLState(err), "%v", err)
	_, err = s.Ack(t.Context(), owner, itemID("orders", 0), itemID("orders", 1))
	assert.Equal(t, text.UndefinedTable, text.SQLState(err), "%v", err)
	assert.False(t, log.has("ERROR", "message refused by the database"))
}

// TestRefusedMessagesOfCallers: callers of Ack, Renew and Claim get the results of the other messages and an error that
// names the refused one; in their own transaction only the error.
func TestRefusedMessagesOfCallers(t *testing.T) {
	h := onPgx(t)
	s, owner := storeOn(t, h, quickStore()), queue.NewOwner()
	storeAll(t, s, items("orders", 20)...)
	msgs := claimed(t, s, owner, 20)
	require.Len(t, msgs, 20)
	ids := make([]queue.ID, len(msgs))
	for i, msg := range msgs {
		ids[i] = msg.ID
	}
	h.exec(t, `ALTER TABLE inbox_queue ADD CONSTRAINT no_sevens CHECK (message_id NOT LIKE '%7') NOT VALID`)
	ours, err := s.Renew(t.Context(), owner, time.Minute, ids...)
	assert.Len(t, ours, 18)
	require.ErrorContains(t, err, "no_sevens")
	n, err := s.Release(t.Context(), owner, ids[:10]...)
	assert.Equal(t, 9, n)
	require.ErrorContains(t, err, "no_sevens")
	assert.Len(t, claimed(t, s, queue.NewOwner(), 20), 9)
	n, err = s.Ack(t.Context(), owner, ids...)
	assert.Equal(t, 9, n)
	require.ErrorContains(t, err, "no_sevens")
	h.exec(t, `ALTER TABLE inbox_queue DROP CONSTRAINT no_sevens`)
	h.exec(t, strings.Replace(fmt.Sprintf(refuser, "true"), `RAISE EXCEPTION 'refused' USING ERRCODE = 'P0001'`,
		`RETURN NULL`, 1))
	n, err = s.Ack(t.Context(), owner, ids...)
	assert.Zero(t, n)
	require.ErrorContains(t, err, "returned NULL")
	err = outbox.InTx(t.Context(), h.db, func(ctx context.Context) error {
		_, err := s.Ack(ctx, owner, ids...)
		return err
	})
	require.ErrorContains(t, err, "returned NULL")
	h.exec(t, `DROP TRIGGER refuses ON inbox_queue`)
	n, err = s.Ack(t.Context(), owner, ids...)
	assert.NoError(t, err)
	assert.Equal(t, 2, n)
}

// TestDoctorOfABusyQueue: a topic whose messages wait for a slot of a busy Dispatcher, or are refused by the database,
// is not reported as lacking a handler.
func TestDoctorOfABusyQueue(t *testing.T) {
	h := onPgx(t)
	s, busy, handles := storeOn(t, h, quickStore()), make(chan struct{}), make(chan struct{}, 1)
	cfg := quickDispatcher(map[string]queue.Handler{
		"slow": {Detached: true, Handle: func(context.Context, *queue.Message) error {
			handles <- struct{}{}
			<-busy
			return nil
		}},
		"letters": {Handle: func(context.Context, *queue.Message) error { return nil }},
	})
	cfg.Concurrency = 1
	storeAll(t, s, items("slow", 1)...)
	dispatching(t, s, cfg)
	<-handles
	storeAll(t, s, items("letters", 8)...)
	h.exec(t, "UPDATE inbox_queue SET first_seen_at = now() - interval '20 minutes'")
	found := findings(t, h)
	assert.NotContains(t, found, "queue_unhandled")
	require.Contains(t, found, "queue_waits")
	assert.Contains(t, found["queue_waits"].Evidence, "letters")

	h.exec(t, `ALTER TABLE inbox_queue ADD CONSTRAINT no_sevens CHECK (message_id NOT LIKE '%7') NOT VALID`)
	close(busy)
	h.reaches(t, 8, "all others are handled", "SELECT count(*) FROM inbox_queue WHERE state = 'done'")
	h.exec(t, "UPDATE inbox_queue SET done_at = now() - interval '2 minutes' WHERE state = 'done'")
	f := ails(t, h, "queue_unhandled")
	assert.Contains(t, f.Evidence, `constraint no_sevens on "inbox_queue"`)
	assert.Contains(t, f.Cure, "message refused by the database")
}
