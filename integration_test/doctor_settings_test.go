package integration_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	asked "github.com/millrace-go/watermill-outbox/broker"
	"github.com/millrace-go/watermill-outbox/middleware"
)

// TestDoctorOfSmallPools, and settings that cannot go well.
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
	assert.Contains(t, f.Evidence, "uses up to 2 of them itself")
	assert.Contains(t, f.Cure, "a pool of its own, with 2")
	said := func() (all string) {
		list, err := newAdmin(t, h).Doctor(t.Context())
		require.NoError(t, err)
		for _, f := range list {
			all += f.String() + "\n"
		}
		return all
	}
	for _, part := range []string{"does not limit the time of a publish", "set forwarder.Config.PublishTimeout",
		"lasts 2.9s: after a slower renewal", "set forwarder.Config.LeaseTTL to 3s", "info retention: forwarder",
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

	its := pgxHandle(t, "own", at, func(cfg *pgxpool.Config) { cfg.MaxConns = 2 }) // as it said
	cfg = classifyingConfig()
	cfg.LeaseTTL, cfg.CloseTimeout = 3*time.Second, 30*time.Second
	startForwarder(t, its, cfg)
	eventually(t, func() bool {
		return h.count(t, "SELECT count(*) FROM outbox_forwarders WHERE facts->>'pool_conns' = '2'") == 1
	}, "it says what pool it has")
	for _, check := range []string{"pool", "classify", "timeouts", "retention"} {
		cured(t, h, check)
	}
	// handlers share it
	h.exec(t, `UPDATE outbox_forwarders SET facts = facts || '{"consumers": {"shop/book": ["orders"]}}'`)
	assert.Contains(t, ails(t, h, "pool").Evidence, "has 2 connections")
}

// TestDoctorOfAPooler: notifications do not come through it.
func TestDoctorOfAPooler(t *testing.T) {
	t.Parallel()
	at := newMigratedDatabase(t)
	f := ails(t, newPgBouncerHandle(t, at), "listen")
	assert.Contains(t, f.Evidence, "there is a pooler in between")
	assert.Contains(t, f.Cure, "a pgx pool that reaches Postgres directly")
	cured(t, newPgxHandle(t, at), "listen")
}

// TestDoctorOfALosingBroker: it may lose what it acknowledged, and nothing is kept that could be sent again.
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

// TestDoctorOfTwoServices: somebody copied a service, its name included, so each handles what the other one should.
func TestDoctorOfTwoServices(t *testing.T) {
	t.Parallel()
	at := newMigratedDatabase(t)
	shop, billing := newPgxHandle(t, at), newPgxHandle(t, at)
	cfg := sharing(classifyingConfig()) // what a forwarder says of itself is written with its lease
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
	require.Zero(t, handled(billing, "shop"), "it has it from the other one's inbox row that it is done")
	// A test cannot be two programs, so one of them is called another here.
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
