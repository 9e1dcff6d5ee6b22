//go:build unix

package integration_test

import (
	"errors"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/schema"
)

// TestParkIsShared: two groups park what they read of one topic in the same tables, and each gets its own back.
func TestParkIsShared(t *testing.T) {
	extended(t)
	t.Parallel()
	w := newInboundWorld(t, 1)
	w.send(1500, 30)
	c, mend := w.parks()
	other := c
	other.Group, other.Service = w.group+"-billing", "billing"
	w.serve(c, failsUntilMended(w.h))
	w.serve(other, failsUntilMended(w.h))
	eventually(t, func() bool {
		return w.parked() > 0 && w.h.count(t, `select count(distinct topic) from outbox_parked`) == 2
	}, "both have parked keys")
	w.await(2 * (w.settled - w.failing()))
	mend()
	w.settled *= 2
	w.settles()
	assert.Equal(t, w.settled/2, w.h.count(t, `select count(*) from ledger where key like 'billing/%'`))
}

// TestParkFromSQL: the handle that parks is one of database/sql.
func TestParkFromSQL(t *testing.T) {
	extended(t)
	t.Parallel()
	w := newInboundWorld(t, 1)
	w.send(1000, 30)
	c, mend := w.parks()
	s, err := startInbound(newSQLHandle(t, "pgx", w.h.url), c, failsUntilMended(w.h), watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(s.close)
	w.awaitParked()
	mend()
	w.settles()
}

// TestParkWithoutCreate: the role of the service may create nothing. Without the tables an error line says so and no
// message is delivered; with the grants that schema.Roles prints it parks.
func TestParkWithoutCreate(t *testing.T) {
	t.Parallel()
	w := newInboundWorld(t, 1)
	w.send(1000, 30)
	c, mend := w.parks()
	at, err := url.Parse(w.h.url)
	require.NoError(t, err)
	name := strings.TrimPrefix(at.Path, "/") + "_service"
	w.h.exec(t, `revoke create on schema public from public`)
	w.h.exec(t, `create role "`+name+`" login`)
	t.Cleanup(func() {
		_, _ = w.h.pool.Exec(t.Context(), `drop owned by "`+name+`"`)
		_, _ = w.h.pool.Exec(t.Context(), `drop role "`+name+`"`)
	})
	w.h.exec(t, `grant select, insert on ledger, mended to "`+name+`"`)
	grant := func(tables outbox.Tables, prefix string, roles ...string) {
		sql, err := schema.Roles(schema.RolesConfig{Tables: tables, Prefix: prefix})
		require.NoError(t, err)
		conn, err := w.h.pool.Acquire(t.Context())
		require.NoError(t, err)
		defer conn.Release()
		for _, role := range roles {
			sql += `grant "` + prefix + role + `" to "` + name + `";`
		}
		_, err = conn.Conn().PgConn().Exec(t.Context(), sql).ReadAll()
		require.NoError(t, err)
	}
	grant(outbox.Tables{}, name+"_", "writer")
	at.User = url.User(name)
	service := newPgxHandle(t, at.String())
	log := newLogCapture(t)
	s, err := startInbound(service, c, failsUntilMended(w.h), log)
	require.NoError(t, err)
	t.Cleanup(s.close)
	eventually(t, func() bool { return log.count("loading parked keys failed") > 0 }, "it may not make the tables")
	assert.Zero(t, w.handled())

	parked := outbox.Tables{Outbox: "outbox_parked"}
	park, err := outbox.FromPgx(w.h.pool, outbox.DBConfig{Tables: parked}, nil)
	require.NoError(t, err)
	_, err = schema.Migrate(t.Context(), park, schema.MigrateConfig{})
	require.NoError(t, err)
	grant(parked, name+"_p_", "writer", "forwarder")
	w.awaitParked()
	mend()
	w.settles()
}

// refusing is an Unmarshaler that refuses some messages until it is mended.
type refusing struct {
	wmkafka.DefaultMarshaler
	mended *atomic.Bool
}

func (r refusing) Unmarshal(msg *sarama.ConsumerMessage) (*message.Message, error) {
	if strings.HasPrefix(string(msg.Value), "strange") && !r.mended.Load() {
		return nil, errors.New("strange")
	}
	return r.DefaultMarshaler.Unmarshal(msg)
}

// TestParkWithoutKey: messages without a key, and those that cannot be unmarshalled, are parked like others, so that
// they do not stop their partition.
func TestParkWithoutKey(t *testing.T) {
	extended(t)
	t.Parallel()
	w := newInboundWorld(t, 1)
	c, mend := w.parks()
	w.sendOne("", "free 1") // its handler fails
	w.sendOne("", "strange-1 1")
	w.sendOne("strange", "strange-2 1")
	w.sendOne("strange", "behind 1")
	w.send(1000, 30)
	readable := &atomic.Bool{}
	c.unmarshaler = refusing{mended: readable}
	w.serve(c, func(msg *message.Message, key string) error {
		if key == "free" {
			return failsUntilMended(w.h)(msg, "key-0")
		}
		return nil
	})
	w.await(w.settled - 4) // the partition goes on
	eventually(t, func() bool { return w.parked() == 4 }, "what fails is parked, with what is behind it")
	assert.Equal(t, w.settled-4, w.handled())
	readable.Store(true)
	mend()
	w.settles()
}

// sendOne writes a message that is neither of the keys nor numbered as those of send are.
func (w *inboundWorld) sendOne(key, value string) {
	w.t.Helper()
	cfg := sarama.NewConfig()
	cfg.Producer.Return.Successes = true
	producer, err := sarama.NewSyncProducer(w.server.Brokers(), cfg)
	require.NoError(w.t, err)
	defer producer.Close()
	w.settled++
	msg := &sarama.ProducerMessage{
		Topic: w.topic, Value: sarama.StringEncoder(value),
		Headers: []sarama.RecordHeader{{Key: []byte(wmkafka.UUIDHeaderKey), Value: []byte(watermill.NewUUID())}},
	}
	if key != "" {
		msg.Key = sarama.StringEncoder(key)
	}
	_, _, err = producer.SendMessage(msg)
	require.NoError(w.t, err)
}

// TestDeployWithoutPark: a release that cannot deliver what is parked is started beside it. It handles nothing, charges
// nothing and says why, and Doctor is critical; beside one with Park it begins when nothing is parked any more.
func TestDeployWithoutPark(t *testing.T) {
	extended(t)
	t.Parallel()
	w := newInboundWorld(t, 2)
	w.send(1000, 20)
	c, mend := w.parks()
	first := w.serve(c, failsUntilMended(w.h))
	w.awaitParked()
	first.close()
	parked, handled := w.parked(), w.handled()
	require.Positive(t, parked)

	mend()
	w.send(500, 20)
	without := c
	without.ParkAfter = 0
	log := newLogCapture(t)
	s, err := startInbound(w.h, without, nil, log)
	require.NoError(t, err)
	t.Cleanup(s.close)
	eventually(t, func() bool { return log.count("wired wrongly") > 0 }, "a line says why")
	assert.Contains(t, strings.Join(*log.lines, "\n"), "start it with Park until nothing is parked")
	assert.Equal(t, handled, w.handled(), "nothing overtakes what is parked")
	assert.Zero(t, s.calls.Load())
	assert.Zero(t, w.h.count(t, `select count(*) from inbox where dead_at is not null`))
	w.h.exec(t, `update outbox_parked set created_at = created_at - interval '3 minutes'`)
	assert.Equal(t, admin.Critical, ails(t, w.h, "parked_undelivered").Severity)

	w.serve(c, nil) // the release before comes back: it empties the park, and then both go on
	w.settles()
}

// TestParkInTwoReleases: the first delivers what is parked and parks nothing yet, so that it can run beside those that
// have no Park; the second parks beside the first.
func TestParkInTwoReleases(t *testing.T) {
	extended(t)
	t.Parallel()
	w := newInboundWorld(t, 2)
	w.send(1000, 20)
	second, mend := w.parks()
	none, first := second, second
	none.ParkAfter, first.ParkAfter = 0, 24*time.Hour
	old := []*inboundService{w.serve(none, failsUntilMended(w.h)), w.serve(none, failsUntilMended(w.h))}
	w.await(100)
	middle := make([]*inboundService, len(old))
	for i := range old { // one after another
		middle[i] = w.serve(first, failsUntilMended(w.h))
		old[i].close()
	}
	assert.Zero(t, w.parked(), "the first release parks nothing")
	for i := range middle {
		w.serve(second, failsUntilMended(w.h))
		middle[i].close() // so that each of the two has a partition, and each of those a key that fails
		w.send(300, 20)
		if i == 0 {
			eventually(t, func() bool { return w.parked() > 0 }, "the second parks beside the first")
			mend()
		}
	}
	w.settles()
}

// TestParkIsLookedAtWhileNothingIsKnown: what is stored when nobody expects it, as by a process that was frozen with it
// in hand, is found by the look of each minute, and nothing else tells of it.
func TestParkIsLookedAtWhileNothingIsKnown(t *testing.T) {
	extended(t)
	t.Parallel()
	w := newInboundWorld(t, 1)
	w.send(1000, 20)
	c, mend := w.parks()
	first := w.serve(c, failsUntilMended(w.h))
	eventually(t, func() bool { return w.parked() > 0 }, "keys are parked")
	w.h.exec(t, `create table late as select * from outbox_parked order by id limit 1`)
	mend()
	w.settles()
	first.close()
	second := w.serve(c, nil)
	w.send(100, 20)
	w.settles()
	calls := second.calls.Load()
	begun := time.Now()
	w.h.exec(t, `insert into outbox_parked (uuid, topic, key, metadata, payload)
		select uuid, topic, key, metadata, payload from late`)
	require.Equal(t, 1, w.parked())
	time.Sleep(time.Minute - patience/2) // the rest of it is what eventually waits for
	eventually(t, func() bool { return w.parked() == 0 }, "it is found")
	t.Logf("found after %s", time.Since(begun).Round(time.Second))
	assert.Equal(t, calls, second.calls.Load(), "the inbox knows it")
	w.settles()
}
