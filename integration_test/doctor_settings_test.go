package integration_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	asked "github.com/millrace-go/watermill-outbox/broker"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/middleware"
)

// TestDoctorOfSmallPools, and of settings that are too small.
func TestDoctorOfSmallPools(t *testing.T) {
	t.Parallel()
	at := newMigratedDatabase(t)
	h := newPgxHandle(t, at)
	small := pgxHandle(t, "small", at, func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	cfg := quickConfig()
	cfg.PublishTimeout, cfg.Retention, cfg.LeaseTTL = -1, -1, 2900*time.Millisecond
	w := startForwarder(t, small, cfg)
	f := ails(t, h, "pool")
	assert.Contains(t, f.Evidence, "has 1 connection")
	assert.Contains(t, f.Evidence, "alone uses up to 3 of them")
	assert.Contains(t, f.Cure, "a pool of its own, with 3")
	said := func() (all string) {
		list, err := newAdmin(t, h).Doctor(t.Context())
		require.NoError(t, err)
		for _, f := range list {
			all += f.String() + "\n"
		}
		return all
	}
	for _, part := range []string{"does not limit the time of a publish", "set forwarder.Config.PublishTimeout",
		"lasts only 2.9s: after a slower renewal", "set forwarder.Config.LeaseTTL to 3s", "info retention: forwarder",
		"deletes messages on publish"} {
		assert.Contains(t, said(), part)
	}
	require.NoError(t, w.Forwarder.Close())

	huge := pgxHandle(t, "huge", at, func(cfg *pgxpool.Config) { cfg.MaxConns = 10_000 })
	cfg = classifyingConfig()
	cfg.PublishTimeout, cfg.CloseTimeout = 20*time.Second, 10*time.Second
	w = startForwarder(t, huge, cfg)
	assert.Contains(t, said(), "set forwarder.Config.CloseTimeout to 20s or more")
	require.NoError(t, w.Forwarder.Close())

	its := pgxHandle(t, "own", at, func(cfg *pgxpool.Config) { cfg.MaxConns = 3 }) // as advised
	cfg = classifyingConfig()
	cfg.LeaseTTL, cfg.CloseTimeout = 3*time.Second, 30*time.Second
	startForwarder(t, its, cfg)
	h.reaches(t, 1, "the finding has the size of the pool",
		"SELECT count(*) FROM outbox_forwarders WHERE facts->>'pool_conns' = '3'")
	for _, check := range []string{"pool", "classify", "timeouts", "retention"} {
		cured(t, h, check)
	}
	// handlers share it
	h.exec(t, `UPDATE outbox_forwarders SET facts = facts || '{"consumers": {"shop/book": ["orders"]}}'`)
	assert.Contains(t, ails(t, h, "pool").Evidence, "has 3 connections")
}

// TestDoctorOfAPooler: notifications do not pass through a pooler.
func TestDoctorOfAPooler(t *testing.T) {
	t.Parallel()
	at := newMigratedDatabase(t)
	f := ails(t, newPgBouncerHandle(t, at), "listen")
	assert.Contains(t, f.Evidence, "there is a pooler in between")
	assert.Contains(t, f.Cure, "a pgx pool that reaches Postgres directly")
	cured(t, newPgxHandle(t, at), "listen")
}

// TestDoctorOfALosingBroker: the broker may lose acknowledged messages, and the outbox keeps none to publish again.
func TestDoctorOfALosingBroker(t *testing.T) {
	h := onPgx(t)
	cfg := classifyingConfig()
	cfg.Retention = -1
	w := startForwarder(t, h, cfg)
	h.exec(t, "INSERT INTO outbox (uuid, topic, payload, due_at) VALUES ('u', 'orders', '', now() + interval '1 hour')")
	loses := brokerFunc(func(topics []string) ([]asked.Risk, []string, error) {
		return []asked.Risk{{Severity: asked.Warning, Evidence: fmt.Sprint(topics), Cure: "three replicas"}}, nil, nil
	})
	found := findings(t, h, loses)
	assert.Equal(t, "[orders]", found["broker"].Evidence)
	assert.Equal(t, admin.Critical, found["retention"].Severity)
	assert.Contains(t, found["retention"].Cure, "set forwarder.Config.Retention")
	require.NoError(t, w.Forwarder.Close())
	cfg.Retention = time.Hour
	w.join(t, h, cfg)
	assert.NotContains(t, findings(t, h, loses), "retention")

	found = findings(t, h, brokerFunc(func([]string) ([]asked.Risk, []string, error) { return nil, nil, errDown }))
	assert.Equal(t, admin.Critical, found["broker"].Severity)
	assert.Contains(t, found["broker"].Evidence, errDown.Error())
}

type brokerFunc func(topics []string) ([]asked.Risk, []string, error)

func (f brokerFunc) Check(_ context.Context, topics []string) ([]asked.Risk, []string, error) {
	return f(topics)
}

func (brokerFunc) Retention(context.Context, string) (time.Duration, bool, error) {
	return 0, false, nil
}

// TestDoctorOfTwoServices: a service was copied, including its name, so each handles messages meant for the other.
func TestDoctorOfTwoServices(t *testing.T) {
	t.Parallel()
	at := newMigratedDatabase(t)
	shop, billing := newPgxHandle(t, at), newPgxHandle(t, at)
	cfg := sharing(classifyingConfig()) // a forwarder writes its facts with its lease
	cfg.Name = "billing"
	w := startForwarder(t, billing, cfg)
	cfg.Name = "shop"
	w.join(t, shop, cfg)
	msg := newMessage("order")
	handled := func(h handle, service string) (calls int) {
		handle := chain(func(*message.Message) ([]*message.Message, error) { calls++; return nil, nil },
			newTx(t, h, middleware.TxConfig{}), newInbox(t, h, middleware.InboxConfig{Service: service, Consumer: "book"}))
		_, err := handle(msg.Copy())
		require.NoError(t, err)
		return calls
	}
	require.Equal(t, 1, handled(shop, "shop"))
	require.Zero(t, handled(billing, "shop"), "it skipped the message because of the other service's inbox row")
	// A test cannot be two programs, so one of them gets another program name here.
	eventually(t, func() bool {
		return billing.exec(t, `UPDATE outbox_forwarders SET facts = facts || '{"program": "example.com/billing"}' `+
			`WHERE name = 'billing' AND facts->'consumers' ? 'shop/book'`) == 1
	}, "its row names the consumer")
	f := ails(t, shop, "consumers")
	assert.Equal(t, admin.Critical, f.Severity)
	assert.Contains(t, f.Evidence, `example.com/billing`)
	assert.Contains(t, f.Cure, "a middleware.StackConfig.Service of its own")

	require.NoError(t, w.Forwarder.Close())
	mended := newPgxHandle(t, at)
	cfg.Name = "billing"
	w.join(t, mended, cfg)
	require.Equal(t, 1, handled(mended, "billing"))
	eventually(t, func() bool {
		return mended.exec(t, `UPDATE outbox_forwarders SET facts = facts || '{"program": "example.com/billing"}' `+
			`WHERE name = 'billing' AND facts->'consumers' ? 'billing/book'`) == 1
	}, "its row names the consumer")
	assert.NotContains(t, findings(t, shop), "consumers")
}

// TestHandlerPool: handlers that wait for a connection, because the pool is smaller than their number, are reported by
// their own process and by Doctor.
func TestHandlerPool(t *testing.T) {
	t.Parallel()
	const connections, handlers = 4, 9
	h := pgxHandle(t, "handlers", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.MaxConns = connections })
	log := newLogCapture(t)
	mw, err := middleware.Tx(h.db, middleware.TxConfig{}, log)
	require.NoError(t, err)
	said := func() int { return log.count("pool is too small for the handlers") }
	release := make(chan struct{})
	handle := mw(func(msg *message.Message) ([]*message.Message, error) {
		<-release
		return nil, nil
	})
	var running sync.WaitGroup
	work := func(n int) {
		for range n {
			running.Go(func() {
				_, err := handle(message.NewMessage(watermill.NewUUID(), nil))
				assert.NoError(t, err)
			})
		}
	}
	work(connections)
	assert.Zero(t, said(), "as many as there are connections")
	work(handlers - connections)
	eventually(t, func() bool { return said() == 1 }, "a line names the pool")
	close(release)
	running.Wait()
	assert.Equal(t, 1, said())
	startForwarder(t, h, quickConfig()) // writes its row
	f := ails(t, h, "handler_pool")
	assert.Regexp(t, `up to [5-9] handlers ran concurrently .* whose pool has 4 connections`, f.Evidence)
}

// TestCommandsOfOtherTables: a database may have several outboxes. The printed command acts on the one that was
// checked, whatever the topic's name is.
func TestCommandsOfOtherTables(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `CREATE SCHEMA "Shop"`)
	other := h.with(t, sqltext.Tables{Schema: "Shop", Outbox: "events", Inbox: "taken"})
	require.NoError(t, makeTables(t.Context(), other.db))
	for _, of := range []handle{h, other} {
		a := newAdmin(t, of)
		for _, topic := range []string{"orders", "-odd one"} {
			err := a.Pause(t.Context(), topic, "a try")
			require.NoError(t, err)
		}
	}
	found, err := newAdmin(t, other).Doctor(t.Context())
	require.NoError(t, err)
	for _, f := range found {
		if f.Check == "topic_paused" {
			said := words(commandOf.FindStringSubmatch(f.Cure)[1])
			said = slices.Insert(said, slices.Index(said, "resume")+1, "--yes")
			r := ctl{t: t, url: h.url}.run(said...)
			require.Zero(t, r.code, "%s: %s%s", said, r.out, r.err)
		}
	}
	assert.Zero(t, other.count(t, `SELECT count(*)::int FROM "Shop".events_topics`))
	assert.Equal(t, 2, h.count(t, `SELECT count(*)::int FROM outbox_topics`), "those of the other outbox")
}

// TestCommandsNameNoEmptyGroup: messages that died without an error have a group that no flag can select.
func TestCommandsNameNoEmptyGroup(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, dead_at) VALUES ('a', 'orders', '', '', now())`)
	assert.NotContains(t, findings(t, h)["dead"].Cure, "--group")
}

// TestNightSwallowedNotifications: a pooler accepts LISTEN but drops the notifications. Doctor waits for them as long
// as documented, although its statements have no timeout.
func TestNightSwallowedNotifications(t *testing.T) {
	t.Parallel()
	at := newMigratedDatabase(t)
	interrupted, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	swallows := startProxy(t, at, passOn, func(client, server net.Conn, _ <-chan struct{}) {
		for {
			whole, err := serverMessage(server)
			if err != nil {
				return
			}
			if whole[0] == 'A' {
				interrupt() // in the middle of doctor's wait
				continue
			}
			if _, err := client.Write(whole); err != nil {
				return
			}
		}
	})
	a, err := admin.New(newPgxHandle(t, swallows).db, admin.Config{QueryTimeout: -1}, nil)
	require.NoError(t, err)
	_, err = a.Doctor(interrupted)
	require.ErrorIs(t, err, context.Canceled, "an interrupted check is not a finding")

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	found, err := a.Doctor(ctx)
	require.NoError(t, err)
	i := slices.IndexFunc(found, func(f admin.Finding) bool { return f.Check == "listen" })
	require.GreaterOrEqual(t, i, 0, "doctor finds listen")
	assert.Equal(t, admin.Warning, found[i].Severity)
	assert.Contains(t, found[i].Evidence, "a notification did not arrive")
	assert.Contains(t, found[i].Cure, "any pooler or proxy between")
	cured(t, newPgxHandle(t, at), "listen")
}
