package integration_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/admin/ui"
	brokers "github.com/millrace-go/watermill-outbox/broker"
	"github.com/millrace-go/watermill-outbox/kafka"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/nats"
)

// deadInARouter has messages die in the handler shop/book of topic orders, whose inbox knows them by a key of their
// own. The handler works as soon as mended is true.
func deadInARouter(t testing.TB, h handle, mended *atomic.Bool, msgs ...*message.Message) *feed {
	return deadOfTopic(t, h, "orders", "dead_letters", mended, msgs...)
}

func deadOfTopic(
	t testing.TB, h handle, topic, letters string, mended *atomic.Bool, msgs ...*message.Message,
) *feed {
	t.Helper()
	f := newFeed()
	newEffects(t, h)
	startRouter(t, func(r *message.Router) {
		r.AddMiddleware(stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{
			Service: "shop", Outcomes: middleware.OutcomesConfig{DeadLetterTopic: letters}, Inbox: middleware.InboxConfig{
				Key: func(m *message.Message) (string, error) { return "key " + m.UUID, nil },
			},
		}, nil)...)
		r.AddConsumerHandler("book", topic, f, func(msg *message.Message) error {
			if !mended.Load() {
				return outbox.Poison(errHandler)
			}
			return write(h, msg)
		})
	})
	for _, msg := range msgs {
		require.True(t, f.deliver(t, msg))
	}
	return f
}

// sentAgain are the messages that were redriven, oldest first.
func sentAgain(t testing.TB, h handle) (msgs []*message.Message) {
	t.Helper()
	for _, id := range column[int64](t, h, "SELECT id FROM outbox WHERE topic = 'orders' ORDER BY id") {
		m, err := newAdmin(t, h).Get(t.Context(), admin.Outbox, fmt.Sprint(id))
		require.NoError(t, err)
		msg := message.NewMessage(m.UUID, m.Payload)
		msg.Metadata = m.Metadata
		msgs = append(msgs, msg)
	}
	return msgs
}

// TestRedriveOfKeptLetters: a dead message is published again as it was, and handled once, also if its broker
// redelivers it.
func TestRedriveOfKeptLetters(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	var mended atomic.Bool
	first, second := newMessage("one"), newMessage("two")
	first.Metadata = message.Metadata{
		"trace": "abc", outbox.MetadataAggregateType: "order", outbox.MetadataAggregateID: "7",
	}
	f := deadInARouter(t, h, &mended, first, second)
	a := newAdmin(t, h)
	act := admin.Act{Filter: admin.Filter{In: admin.Inbox, All: true}, Reason: "mended"}
	act.DryRun = true
	tried, err := a.Redrive(t.Context(), act)
	require.NoError(t, err)
	assert.Equal(t, admin.Count{N: 2}, tried.Matched)
	assert.Empty(t, sentAgain(t, h), "a preview changes nothing")
	act.DryRun, act.Preview = false, tried.Preview
	r, err := a.Redrive(t.Context(), act)
	require.NoError(t, err)
	assert.Equal(t, int64(2), r.Touched)

	again := sentAgain(t, h)
	require.Len(t, again, 2)
	assert.Equal(t, first.UUID, again[0].UUID)
	assert.Equal(t, first.Payload, again[0].Payload)
	letter := value[string](t, h, "SELECT uuid FROM outbox WHERE metadata->>'uuid_poisoned' = $1", first.UUID)
	assert.Equal(t, message.Metadata{
		"trace": "abc", outbox.MetadataAggregateType: "order", outbox.MetadataAggregateID: "7",
		outbox.MetadataGeneration: letter, outbox.MetadataRedriven: "1",
	}, again[0].Metadata)
	assert.Equal(t, "order/7",
		value[string](t, h, "SELECT key FROM outbox WHERE topic = 'orders' AND uuid = $1", first.UUID))

	r, err = a.Redrive(t.Context(), act) // once more, with the same preview
	require.NoError(t, err)
	assert.Zero(t, r.Touched)
	assert.Len(t, sentAgain(t, h), 2)

	mended.Store(true)
	for range 2 { // the forwarder brings it, and the broker too
		for _, msg := range again {
			assert.True(t, f.deliver(t, msg.Copy()))
			assert.Equal(t, 1, effects(t, h, msg))
		}
	}
	entries, _, err := a.Audit(t.Context(), admin.Page{Limit: 2})
	require.NoError(t, err)
	assert.Equal(t, "redrive", entries[1].Action)
	assert.Equal(t, int64(2), entries[1].Result.Touched)
}

// TestRedriveOfWhatDiesAgain: the second letter is another one, and counts.
func TestRedriveOfWhatDiesAgain(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	var mended atomic.Bool
	f := deadInARouter(t, h, &mended, newMessage("one"))
	a := newAdmin(t, h)
	for n := range 3 {
		r, err := a.Redrive(t.Context(), admin.Act{Filter: admin.Filter{In: admin.Inbox, All: true}})
		require.NoError(t, err)
		require.Equal(t, int64(1), r.Touched)
		again := sentAgain(t, h)
		require.Len(t, again, n+1)
		assert.Equal(t, fmt.Sprint(n+1), again[n].Metadata.Get(outbox.MetadataRedriven))
		assert.True(t, f.deliver(t, again[n].Copy()))
	}
	assert.Equal(t, 4, h.count(t, "SELECT count(DISTINCT uuid) FROM outbox WHERE topic = 'dead_letters'"))
	assert.Equal(t, 3,
		h.count(t, "SELECT count(DISTINCT metadata->>'outbox_generation') FROM outbox WHERE topic = 'orders'"))
}

// TestRedriveIsOneTransaction: killed in between, or by two at once, a message is sent and revived, or neither.
func TestRedriveIsOneTransaction(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	var mended atomic.Bool
	var msgs []*message.Message
	for i := range 40 {
		msgs = append(msgs, newMessage(fmt.Sprint(i)))
	}
	deadInARouter(t, h, &mended, msgs...)
	h.exec(t, `CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(60); RETURN NULL; END $$`)
	a, err := admin.New(h.db, admin.Config{Actor: "alice", BatchSize: 3}, nil)
	require.NoError(t, err)
	act := admin.Act{Filter: admin.Filter{In: admin.Inbox, All: true}}
	for _, table := range []string{"outbox", "inbox", "outbox_audit"} { // at each part of the statement
		timing := map[string]string{
			"outbox": "AFTER INSERT", "inbox": "AFTER UPDATE", "outbox_audit": "BEFORE UPDATE OF touched",
		}
		h.exec(t, "CREATE TRIGGER die "+timing[table]+" ON "+table+" FOR EACH ROW EXECUTE FUNCTION die()")
		_, err = a.Redrive(t.Context(), act)
		require.Error(t, err, table)
		h.exec(t, "DROP TRIGGER die ON "+table)
		assert.Empty(t, sentAgain(t, h), table)
		assert.Equal(t, len(msgs), h.count(t, "SELECT count(*) FROM inbox WHERE dead_at IS NOT NULL"), table)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			_, err := a.Redrive(t.Context(), act)
			assert.NoError(t, err)
		})
	}
	all.Wait()
	_, err = a.Redrive(t.Context(), act)
	require.NoError(t, err)
	assert.Len(t, sentAgain(t, h), len(msgs))
	assert.Equal(t, len(msgs), h.count(t, "SELECT count(DISTINCT uuid) FROM outbox WHERE topic = 'orders'"))
	assert.Equal(t, len(msgs), h.count(t, "SELECT count(*) FROM inbox WHERE dead_at IS NULL AND revived = 1"))
}

// TestRedriveWithoutALetter says of which messages the letter is gone, and what to do.
func TestRedriveWithoutALetter(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	var mended atomic.Bool
	kept, gone := newMessage("kept"), newMessage("gone")
	deadInARouter(t, h, &mended, kept, gone)
	h.exec(t, "DELETE FROM outbox WHERE metadata->>'uuid_poisoned' = $1", gone.UUID)
	c := ctl{t: t, url: h.url}
	r := c.run("inbox", "redrive", "shop/book:key "+gone.UUID, "--yes")
	assert.Equal(t, 1, r.code)
	assert.Contains(t, r.err, "the dead letters are not in the outbox any more")
	r = c.run("inbox", "redrive", "--all", "--yes")
	assert.Zero(t, r.code, r.err)
	assert.Contains(t, r.out, "Redriven 1 message")
	assert.Contains(t, r.err, "1 message has no dead letter in the outbox any more")
	again := sentAgain(t, h)
	require.Len(t, again, 1)
	assert.Equal(t, kept.UUID, again[0].UUID)
	assert.Equal(t, 1, h.count(t, "SELECT count(*) FROM inbox WHERE dead_at IS NOT NULL"), "the other stays dead")
	_, err := newAdmin(t, h).Redrive(t.Context(), admin.Act{Filter: admin.Filter{In: admin.Inbox, All: true}})
	require.ErrorIs(t, err, admin.ErrNoLetter)
}

// TestRedriveByRoles: the role of operators may, that of readers may not, and the page has it for those who may act.
func TestRedriveByRoles(t *testing.T) {
	t.Parallel()
	owner, as := newRoles(t)
	var mended atomic.Bool
	deadInARouter(t, owner, &mended, newMessage("one"), newMessage("two"))
	act := admin.Act{Filter: admin.Filter{In: admin.Inbox, All: true}, Limit: 1}
	reader := as("reader")
	_, err := newAdmin(t, reader).Redrive(t.Context(), act)
	require.Error(t, err)
	operator := as("admin")
	r, err := newAdmin(t, operator).Redrive(t.Context(), act)
	require.NoError(t, err)
	assert.Equal(t, int64(1), r.Touched)

	s := newSite(t, operator, ui.Access{Actor: "alice", Act: true})
	s.get("messages?in=inbox&state=dead").says(t, "the list", "Redrive")
	assert.NotContains(t, newSite(t, operator, ui.Access{}).get("messages?in=inbox&state=dead").body, "Redrive")
}

// heldLetters is a topic of dead letters.
type heldLetters []*message.Message

func (l heldLetters) Messages(_ context.Context, _ string, fn func(*message.Message, time.Time) error) error {
	for _, m := range l {
		if err := fn(m, time.Now()); err != nil {
			return err
		}
	}
	return nil
}

// TestALetterOfWhatIsNotDeadStays in its topic: its message was requeued, and handled since or not.
func TestALetterOfWhatIsNotDeadStays(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	var mended atomic.Bool
	msgs := []*message.Message{newMessage("0"), newMessage("1"), newMessage("2")}
	f := deadInARouter(t, h, &mended, msgs...)
	a := newAdmin(t, h)
	var letters heldLetters
	for _, id := range column[int64](t, h, "SELECT id FROM outbox ORDER BY id") {
		m, err := a.Get(t.Context(), admin.Outbox, fmt.Sprint(id))
		require.NoError(t, err)
		letter := message.NewMessage(m.UUID, m.Payload)
		letter.Metadata = m.Metadata
		letters = append(letters, letter)
	}
	require.Len(t, letters, 3)
	h.exec(t, "DELETE FROM outbox")
	_, err := a.Requeue(t.Context(), admin.Act{Filter: admin.Filter{
		In: admin.Inbox, IDs: []string{"shop/book:key " + msgs[0].UUID, "shop/book:key " + msgs[1].UUID},
	}})
	require.NoError(t, err)
	mended.Store(true)
	require.True(t, f.deliver(t, msgs[0]))
	act := admin.Act{Filter: admin.Filter{In: admin.Inbox, All: true}}
	act.DryRun = true
	tried, err := a.RedriveTopic(t.Context(), letters, admin.TopicRedrive{Topic: "letters"}, act)
	require.NoError(t, err)
	assert.EqualValues(t, 1, tried.Matched.N)
	act.DryRun = false
	r, err := a.RedriveTopic(t.Context(), letters, admin.TopicRedrive{Topic: "letters"}, act)
	require.NoError(t, err)
	assert.EqualValues(t, 1, r.Touched)
	assert.Equal(t, []string{msgs[2].UUID}, column[string](t, h, "SELECT uuid FROM outbox"))
}

// TestRedriveOfATopic reads the letters from a broker, whose outbox has none any more: each is redriven once, however
// often and by how many it is read, and none that would go round for ever.
func TestRedriveOfATopic(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, origin, letters, flag, address string, from brokers.MessageReader) {
		h := newPgxHandle(t, newMigratedDatabase(t))
		c := ctl{t: t, url: h.url}
		forward := func() {
			t.Helper()
			r := c.run("forward", "--drain", flag, address)
			require.Zero(t, r.code, r.err)
		}
		var mended atomic.Bool
		var msgs []*message.Message
		for i := range 30 {
			msgs = append(msgs, newMessage(fmt.Sprint(i)))
		}
		f := deadOfTopic(t, h, origin, letters, &mended, msgs...)
		h.exec(t, `INSERT INTO outbox (uuid, topic, payload, metadata) VALUES ('foreign', $1, 'x', '{}'),
			('tired', $1, 'x', '{"topic_poisoned": "orders", "uuid_poisoned": "tired", "outbox_redriven": "3"}'),
			('own', $1, 'x', jsonb_build_object('topic_poisoned', $1::text, 'uuid_poisoned', 'own'))`, letters)
		forward()
		h.exec(t, "DELETE FROM outbox")

		a, err := admin.New(h.db, admin.Config{Actor: "alice", BatchSize: 4}, nil)
		require.NoError(t, err)
		cfg, act := admin.TopicRedrive{Topic: letters}, admin.Act{Filter: admin.Filter{In: admin.Inbox, All: true}}
		act.DryRun = true
		tried, err := a.RedriveTopic(t.Context(), from, cfg, act)
		require.NoError(t, err)
		assert.Equal(t, admin.Count{N: 30}, tried.Matched)
		assert.Equal(t, [3]int64{1, 2, 33}, [3]int64{tried.NoLetter, tried.Looping, tried.Compared})
		none, err := a.RedriveTopic(t.Context(), from, cfg, admin.Act{
			Filter: admin.Filter{In: admin.Inbox, Consumer: "bank/book"}, DryRun: true,
		})
		require.NoError(t, err)
		assert.Zero(t, none.Matched.N)
		assert.Zero(t, outboxed(t, h), "a preview changes nothing")

		// It is cut off, and gone on with by several at once.
		ctx, cancel := context.WithCancel(t.Context())
		act.DryRun, act.Preview, act.Progress = false, tried.Preview, func(context.Context, admin.Result) { cancel() }
		r, err := a.RedriveTopic(ctx, from, cfg, act)
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, int64(4), r.Touched)
		assert.Equal(t, 26, h.count(t, "SELECT count(*) FROM inbox WHERE dead_at IS NOT NULL"))
		act.Progress = nil
		var touched atomic.Int64
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				r, err := a.RedriveTopic(t.Context(), from, cfg, act)
				assert.NoError(t, err)
				touched.Add(r.Touched)
			})
		}
		all.Wait()
		assert.Equal(t, int64(26), touched.Load())
		ctl := c.run("redrive", letters, "--all", "--yes", flag, address)
		assert.Zero(t, ctl.code, ctl.err)
		assert.Contains(t, ctl.out, "Nothing to do")
		assert.Equal(t, 30, outboxed(t, h))
		assert.Equal(t, 30, h.count(t, "SELECT count(DISTINCT uuid) FROM outbox WHERE topic = $1 "+
			"AND metadata->>'outbox_redriven' = '1' AND metadata->>'uuid_poisoned' IS NULL", origin))

		// They reach the broker, also JetStream, which has seen no such generation, and are handled once.
		forward()
		mended.Store(true)
		came := map[string]int{}
		require.NoError(t, from.Messages(t.Context(), origin, func(m *message.Message, _ time.Time) error {
			came[m.UUID]++
			if !f.deliver(t, m) {
				return errors.New("not acked")
			}
			return nil
		}))
		assert.Len(t, came, 30)
		for _, msg := range msgs {
			assert.Equal(t, 1, effects(t, h, msg))
		}
	}
	t.Run("Kafka", func(t *testing.T) {
		server := kafkaServer(t)
		log, err := kafka.NewTopicReader(kafka.TopicReaderConfig{Brokers: server.Brokers()}, nil)
		require.NoError(t, err)
		defer log.Close()
		test(t, kafkaTopic(t, server, 2, nil), kafkaTopic(t, server, 3, nil), "--kafka", server.Brokers()[0], log)
	})
	t.Run("JetStream", func(t *testing.T) {
		url := natsServer(t).URL()
		log, err := nats.NewTopicReader(nats.TopicReaderConfig{URL: url}, nil)
		require.NoError(t, err)
		defer log.Close()
		_, _, prefix := natsStream(t, url, nil)
		test(t, prefix+"orders", prefix+"letters", "--nats", url, log)
	})
}
