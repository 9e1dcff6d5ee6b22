package integration_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/queue"
)

const noExceptions = "The call returns an ErrInvalid that names the problem."

// processed calls AlreadyProcessed for a message.
func (x ibx) processed(t testing.TB, id string, hash []byte) bool {
	t.Helper()
	done, err := x.store.AlreadyProcessed(t.Context(), x.id(id), hash)
	require.NoError(t, err)
	return done
}

var ibxDeduplication = []requirement{
	{number: 1, text: "source and message id together are the key", verdict: held, test: func(t *testing.T, x ibx) {
		other := x.item("a")
		other.Source += "-other"
		stored := x.put(t, x.item("a"), other, x.item("b"))
		for _, s := range stored {
			assert.Equal(t, queue.New, s.Result)
		}
		assert.Equal(t, queue.Updated, x.put(t, x.item("a"))[0].Result)
		upper := x.item("A")
		assert.Equal(t, queue.New, x.put(t, upper)[0].Result, "case matters")
	}},
	{number: 2, text: "AlreadyProcessed checks atomically", verdict: held, test: func(t *testing.T, x ibx) {
		const callers = 8
		require.False(t, x.exists(t, "a"))
		answers := make(chan bool, callers)
		for range callers {
			go func() {
				done, err := x.store.AlreadyProcessed(t.Context(), x.id("a"), nil)
				assert.NoError(t, err)
				answers <- done
			}()
		}
		for range callers {
			assert.False(t, <-answers)
		}
		assert.True(t, x.exists(t, "a"))
	}},
	{number: 3, text: "true for a done message", verdict: held, test: func(t *testing.T, x ibx) {
		settles(t, 1)(x.store.Ack(t.Context(), x.owner, x.has(t, "a")))
		assert.True(t, x.processed(t, "a", nil))
	}},
	{number: 4, text: "an unknown message is recorded as seen", verdict: held, test: func(t *testing.T, x ibx) {
		assert.False(t, x.processed(t, "a", nil))
		assert.Equal(t, queue.Seen, x.get(t, "a").State)
	}},
	{number: 5, text: "false for an unfinished message, and LastSeenAt advances", verdict: differs,
		why: "LastSeenAt does not advance while the message is being handled: the handler's transaction has locked its " +
			"row, and the caller would wait for the lock.",
		test: func(t *testing.T, x ibx) {
			x.put(t, x.item("a"))
			before := x.get(t, "a").LastSeenAt
			assert.False(t, x.processed(t, "a", nil))
			assert.True(t, x.get(t, "a").LastSeenAt.After(before))
			x.claim(t, x.owner, 1)
			before = x.get(t, "a").LastSeenAt
			assert.False(t, x.processed(t, "a", nil))
			assert.Equal(t, before, x.get(t, "a").LastSeenAt)
		}},
	{number: 6, text: "concurrent calls are safe", verdict: held, test: func(t *testing.T, x ibx) {
		errs := make(chan error, 8)
		for i := range 8 {
			go func() {
				for range 20 {
					if _, err := x.store.AlreadyProcessed(t.Context(), x.id(string(rune('a'+i%2))), nil); err != nil {
						errs <- err
						return
					}
				}
				errs <- nil
			}()
		}
		for range 8 {
			require.NoError(t, <-errs)
		}
	}},
	{number: 7, text: "a hash is stored for later calls", verdict: differs,
		why: "An empty hash counts as none. While the message is being handled, a hash is compared but not stored: see " +
			"IBX-005.",
		test: func(t *testing.T, x ibx) {
			hash := queue.SHA256([]byte("content"))
			x.processed(t, "a", nil)
			x.processed(t, "a", []byte{})
			x.processed(t, "a", hash)
			assert.False(t, x.logs.has("ERROR"))
			assert.Equal(t, hash, x.get(t, "a").Hash)
			id := x.has(t, "b")
			x.processed(t, "b", hash)
			assert.Empty(t, x.get(t, "b").Hash)
			settles(t, 1)(x.store.Ack(t.Context(), x.owner, id))
			x.processed(t, "b", hash)
			assert.Equal(t, hash, x.get(t, "b").Hash, "even for a done message")
		}},
	{number: 8, text: "a different hash is logged, without an error", verdict: held, test: func(t *testing.T, x ibx) {
		x.processed(t, "a", []byte("one"))
		x.processed(t, "a", []byte("one"))
		assert.False(t, x.logs.has("ERROR"))
		assert.False(t, x.processed(t, "a", []byte("two")))
		assert.True(t, x.logs.has("ERROR", "different content", x.name))
		assert.Equal(t, []byte("one"), x.get(t, "a").Hash)
	}},
	{number: 9, text: "AlreadyProcessed refuses an empty message id", verdict: differs, why: noExceptions, test: func(
		t *testing.T, x ibx,
	) {
		invalid(t, x.see(t)(x.id("")), "its message id is empty")
	}},
	{number: 10, text: "AlreadyProcessed refuses an empty source", verdict: differs, why: noExceptions, test: func(
		t *testing.T, x ibx,
	) {
		invalid(t, x.see(t)(queue.ID{MessageID: "a"}), "its source is empty")
	}},
	{number: 11, text: "a message id has at most 255 characters", verdict: differs, why: noExceptions, test: func(
		t *testing.T, x ibx,
	) {
		require.NoError(t, x.see(t)(x.id(strings.Repeat("ü", 255))))
		invalid(t, x.see(t)(x.id(strings.Repeat("x", 256))), "256 characters")
	}},
	{number: 12, text: "a source has at most 255 characters", verdict: differs, why: noExceptions, test: func(
		t *testing.T, x ibx,
	) {
		require.NoError(t, x.see(t)(queue.ID{Source: strings.Repeat("ü", 255), MessageID: "a"}))
		invalid(t, x.see(t)(queue.ID{Source: strings.Repeat("x", 256), MessageID: "a"}), "256 characters")
	}},
}

func (x ibx) see(t testing.TB) func(id queue.ID) error {
	return func(id queue.ID) error {
		_, err := x.store.AlreadyProcessed(t.Context(), id, nil)
		return err
	}
}

// refusesItem checks that a changed item is refused, and why.
func refusesItem(t testing.TB, x ibx, why string, change func(*queue.Item)) {
	t.Helper()
	bad := x.item("bad")
	change(&bad)
	_, err := x.store.Enqueue(t.Context(), x.item("good"), bad)
	invalid(t, err, why)
	require.ErrorContains(t, err, "item 1 of the call")
	_, err = x.store.Get(t.Context(), x.id("good"))
	require.ErrorIs(t, err, queue.ErrNotFound, "no item of the call is stored")
}

var ibxEnqueuing = []requirement{
	{number: 13, text: "Enqueue stores durably", verdict: held, test: func(t *testing.T, x ibx) {
		it := x.item("a")
		it.Key, it.Metadata, it.Hash = "key", map[string]string{"k": "ü\\\"'"}, []byte{0, 1}
		it.Payload = []byte{0, 255, '\\', '\''}
		x.put(t, it)
		assert.Equal(t, it, x.get(t, "a").Item)
		assert.Equal(t, "p", value[string](t, x.handle, "select relpersistence::text from pg_class "+
			"where relname = 'inbox_queue'"))
	}},
	{number: 14, text: "duplicates are stored once", verdict: held, test: func(t *testing.T, x ibx) {
		errs := make(chan error, 8)
		for range 8 {
			go func() {
				_, err := x.store.Enqueue(t.Context(), x.item("a"), x.item("b"), x.item("c"))
				errs <- err
			}()
		}
		for range 8 {
			require.NoError(t, <-errs)
		}
		assert.Len(t, x.claim(t, x.owner, 10), 3)
	}},
	{number: 15, text: "Enqueue refuses an empty topic", verdict: differs, why: noExceptions, test: func(
		t *testing.T, x ibx,
	) {
		refusesItem(t, x, "its topic is empty", func(it *queue.Item) { it.Topic = "" })
	}},
	{number: 16, text: "Enqueue refuses an empty source", verdict: differs, why: noExceptions, test: func(
		t *testing.T, x ibx,
	) {
		refusesItem(t, x, "its source is empty", func(it *queue.Item) { it.Source = "" })
	}},
	{number: 17, text: "Enqueue refuses an empty message id", verdict: differs, why: noExceptions, test: func(
		t *testing.T, x ibx,
	) {
		refusesItem(t, x, "its message id is empty", func(it *queue.Item) { it.MessageID = "" })
	}},
	{
		number: 18, text: "Enqueue refuses a null payload", verdict: notApplicable,
		why: "A nil slice is an empty payload: see IBX-019.",
	},
	{number: 19, text: "an empty payload is valid", verdict: held, test: func(t *testing.T, x ibx) {
		it := x.item("a")
		it.Payload = nil
		x.put(t, it)
		msgs := x.claim(t, x.owner, 1)
		require.Len(t, msgs, 1)
		assert.Empty(t, msgs[0].Payload)
	}},
	{number: 20, text: "a topic has at most 255 characters", verdict: differs, why: noExceptions, test: func(
		t *testing.T, x ibx,
	) {
		refusesItem(t, x, "256 characters", func(it *queue.Item) { it.Topic = strings.Repeat("ü", 256) })
		it := x.item("a")
		it.Topic = strings.Repeat("ü", 255)
		x.put(t, it)
	}},
	{number: 21, text: "topics are case-sensitive", verdict: held, test: func(t *testing.T, x ibx) {
		it := x.item("a")
		it.Topic = strings.ToLower(x.name)
		x.put(t, it)
		assert.Empty(t, x.claim(t, x.owner, 1))
	}},
	{number: 22, text: "a payload may have any format", verdict: held, test: func(t *testing.T, x ibx) {
		it := x.item("a")
		it.Payload = []byte("\xff\x00{")
		x.put(t, it)
		assert.Equal(t, it.Payload, x.get(t, "a").Payload)
	}},
	{number: 23, text: "a message is not claimed before it is due", verdict: held, test: func(t *testing.T, x ibx) {
		it := x.item("a")
		it.DueAt = time.Now().Add(time.Hour).Truncate(time.Microsecond)
		x.put(t, it)
		assert.True(t, x.get(t, "a").DueAt.Equal(it.DueAt))
		assert.Empty(t, x.claim(t, x.owner, 1))
		x.due(t, "a")
		assert.Len(t, x.claim(t, x.owner, 1), 1)
	}},
	{number: 24, text: "without a due time, or with a past one, a message can be claimed immediately", verdict: held,
		test: func(t *testing.T, x ibx) {
			it := x.item("b")
			it.DueAt = time.Now().Add(-time.Hour)
			x.put(t, x.item("a"), it)
			assert.Len(t, x.claim(t, x.owner, 10), 2)
		}},
	{number: 25, text: "FirstSeenAt is the database's time of the first insertion", verdict: held, test: func(
		t *testing.T, x ibx,
	) {
		before := x.now(t)
		x.put(t, x.item("a"))
		first := x.get(t, "a").FirstSeenAt
		assert.False(t, first.Before(before))
		assert.False(t, first.After(x.now(t)))
		x.put(t, x.item("a"))
		assert.Equal(t, first, x.get(t, "a").FirstSeenAt)
	}},
	{number: 26, text: "LastSeenAt advances with each duplicate", verdict: differs,
		why: "Except for a duplicate that arrives while the message is being handled: see IBX-005.",
		test: func(t *testing.T, x ibx) {
			x.put(t, x.item("a"))
			before := x.get(t, "a").LastSeenAt
			x.put(t, x.item("a"))
			assert.True(t, x.get(t, "a").LastSeenAt.After(before))
			x.due(t, "a")
			require.Len(t, x.claim(t, x.owner, 10), 1)
			settles(t, 1)(x.store.Ack(t.Context(), x.owner, x.id("a")))
			before = x.get(t, "a").LastSeenAt
			x.put(t, x.item("a"))
			assert.True(t, x.get(t, "a").LastSeenAt.After(before), "even for a done message")
		}},
	{number: 27, text: "a new message has attempt 0 and is processing", verdict: held, test: func(t *testing.T, x ibx) {
		x.put(t, x.item("a"))
		msg := x.get(t, "a")
		assert.Zero(t, msg.Attempts)
		assert.Equal(t, queue.Processing, msg.State)
	}},
	{number: 28, text: "a done message is unchanged", verdict: held, test: func(t *testing.T, x ibx) {
		settles(t, 1)(x.store.Ack(t.Context(), x.owner, x.has(t, "a")))
		assert.Equal(t, queue.AlreadyDone, x.put(t, x.item("a"))[0].Result)
		assert.Equal(t, queue.Done, x.get(t, "a").State)
		assert.Empty(t, x.claim(t, x.owner, 1))
	}},
	{number: 29, text: "a seen, processing or dead message gets the new content", verdict: differs,
		why: "A message that is being handled keeps its content (Busy): its handler has the old content, and its ack " +
			"would drop the new one. A dead message stays dead with the new content until it is requeued. A message " +
			"that waits after a failure continues to wait.",
		test: func(t *testing.T, x ibx) {
			x.processed(t, "seen", nil)
			require.NoError(t, x.store.MarkDead(t.Context(), x.has(t, "dead"), "why"))
			x.put(t, x.item("waits"))
			for _, id := range []string{"seen", "waits", "dead"} {
				it := x.item(id)
				it.Topic, it.Payload, it.Hash, it.DueAt = x.name+"-new", []byte("new"), []byte("hash"),
					time.Now().Add(time.Hour).Truncate(time.Microsecond)
				assert.Equal(t, queue.Updated, x.put(t, it)[0].Result, id)
				msg := x.get(t, id)
				assert.Equal(t, it.Topic, msg.Topic, id)
				assert.Equal(t, it.Payload, msg.Payload, id)
				assert.Equal(t, it.Hash, msg.Hash, id)
				assert.True(t, it.DueAt.Equal(msg.DueAt), id)
			}
			assert.Equal(t, queue.Dead, x.get(t, "dead").State)
			assert.Equal(t, queue.Processing, x.get(t, "seen").State)
			x.has(t, "busy")
			before := x.row(t, "busy")
			it := x.item("busy")
			it.Payload = []byte("new")
			assert.Equal(t, queue.Busy, x.put(t, it)[0].Result)
			assert.Equal(t, before, x.row(t, "busy"))
		}},
}
