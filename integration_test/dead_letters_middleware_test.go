package integration_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/middleware"
)

func poison(*message.Message) ([]*message.Message, error) { return nil, outbox.Poison(errHandler) }

// JetStream and an inbox behind the dead-letter topic keep one of several dead letters with the same UUID.
func TestEachDeathHasItsOwnDeadLetter(t *testing.T) {
	h := onPgx(t)
	msg := newMessage("payload")
	deadLetters := func() []string {
		return column[string](t, h, "select uuid from outbox where topic = 'dead_letters' "+
			"and metadata->>'uuid_poisoned' = $1 order by id", msg.UUID)
	}
	die := func(service, consumer string) {
		t.Helper()
		before := len(deadLetters())
		_, err := chain(poison, stack(t, h, middleware.StackConfig{
			Service: service, Inbox: middleware.InboxConfig{Consumer: consumer},
		})...)(msg.Copy())
		require.NoError(t, err)
		require.Len(t, deadLetters(), before+1)
	}
	die("shop", "first")
	die("shop", "second")
	die("bank", "first")
	for range 2 {
		require.True(t, revived(t, h, "shop/first", msg.UUID))
		die("shop", "first")
	}
	all := deadLetters()
	slices.Sort(all)
	assert.Len(t, slices.Compact(all), 5)
	assert.NotContains(t, all, msg.UUID)
}

// TestADeadLetterOfAMessageWithoutUUID: the dead letter's UUID is derived from the position of the message in the
// broker, so redeliveries write the same dead letter, and other partitions, offsets and topics write different ones. If
// no position is known, each has its own.
func TestADeadLetterOfAMessageWithoutUUID(t *testing.T) {
	h := onPgx(t)
	mws := stack(t, h, middleware.StackConfig{})
	places := []core.Consumed{{Topic: "a", Position: "0/1"}, {Topic: "a", Position: "0/2"}, {Topic: "a", Position: "1/1"},
		{Topic: "b", Position: "0/1"}, {}}
	for range 3 {
		for _, at := range places {
			msg := message.NewMessage("", []byte("same"))
			msg.SetContext(core.WithConsumed(t.Context(), at))
			_, err := chain(poison, mws...)(msg)
			require.NoError(t, err)
		}
	}
	assert.Equal(t, []string{"3", "3", "3", "3", "1", "1", "1"},
		column[string](t, h, "select count(*)::text from outbox group by uuid order by 1 desc"))
}

func TestDeadLetterAlwaysFits(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	h := newPgxHandle(t, newMigratedDatabase(t))
	mws := stack(t, h, middleware.StackConfig{})
	for name, metadata := range map[string]message.Metadata{
		"at the limit":                  {"a": strings.Repeat("x", limit-len(`{"a":""}`))},
		"one byte below":                {"a": strings.Repeat("x", limit-len(`{"a":""}`)-1)},
		"room for one entry":            {"a": strings.Repeat("x", limit-len(`{"a":""}`)-60)},
		"room for all but the error":    {"a": strings.Repeat("x", limit-len(`{"a":""}`)-300)},
		"larger than the outbox allows": {"a": strings.Repeat("x", limit), "b": "kept"},
		"escaped to six times its size": {"a": strings.Repeat("\x01", limit/2)},
		"more by what replaces a NUL":   {"a": strings.Repeat("\x00", limit-100)},
		"refused by the outbox":         {"Outbox-Key": "k", "outboxgeneration": "1", "aggregate_type": "order"},
		"a dead letter's own":           {"reason_poisoned": strings.Repeat("x", limit-100)},
	} {
		msg := newMessage(name)
		msg.Metadata = metadata
		handler := func(*message.Message) ([]*message.Message, error) {
			return nil, outbox.Poison(fmt.Errorf("%s", strings.Repeat("<", 2000)))
		}
		_, err := chain(handler, mws...)(msg)
		require.NoError(t, err, name)
		var deadLetter map[string]string
		stored := value[string](t, h, "select metadata::text from outbox where payload = $1::bytea", []byte(name))
		require.NoError(t, json.Unmarshal([]byte(stored), &deadLetter))
		if sent, err := json.Marshal(metadata); err == nil && len(sent) <= limit && metadata["a"] != "" {
			assert.Equal(t, strings.ReplaceAll(metadata["a"], "\x00", "\uFFFD") == deadLetter["a"], true,
				"%s: the message's own metadata are cut", name)
		}
		switch name {
		case "room for one entry":
			assert.Equal(t, msg.UUID, deadLetter["uuid_poisoned"], name)
		case "room for all but the error", "larger than the outbox allows", "a dead letter's own":
			assert.Equal(t, msg.UUID, deadLetter["uuid_poisoned"], name)
			assert.Equal(t, "shop", deadLetter["service_poisoned"], name)
			assert.Contains(t, deadLetter[wmiddleware.ReasonForPoisonedKey], "poison message", name)
		}
		if name == "larger than the outbox allows" {
			assert.Equal(t, "kept", deadLetter["b"])
			assert.Greater(t, len(deadLetter["a"]), limit/10)
		}
	}
}

// poisoned is a handler of the dead-letter topic that returns a poison error until it is mended, and remembers its
// messages.
type poisoned struct {
	mu     sync.Mutex
	uuids  []string
	mended bool
}

func (p *poisoned) handle(msg *message.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.uuids = append(p.uuids, msg.UUID); p.mended {
		return nil
	}
	return outbox.Poison(errHandler)
}

func (p *poisoned) mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mended = true
}

// deadLetters returns the distinct messages, and the number of calls.
func (p *poisoned) deadLetters() (uuids []string, calls int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Compact(slices.Sorted(slices.Values(p.uuids))), len(p.uuids)
}

// TestNoDeadLetterOfADeadLetter: a handler of the dead-letter topic that poisons a dead letter gets it again, and no
// dead letter is written for it. Otherwise one message would keep service and broker busy forever.
func TestNoDeadLetterOfADeadLetter(t *testing.T) {
	h := onPgx(t)
	pubsub, p, log := inProcess(t, false), &poisoned{}, newLogCapture(t)
	stack := stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{ErrorHandler: middleware.ErrorHandlerConfig{
		MaxAttempts: 1, MinDeadAge: -1, Backoff: outbox.Backoff{Initial: 10 * time.Millisecond, Max: 100 * time.Millisecond},
	}}, log)
	startRouter(t, func(r *message.Router) {
		r.AddMiddleware(stack...)
		r.AddConsumerHandler("orders", "orders", pubsub, func(*message.Message) error { return outbox.Poison(errHandler) })
		r.AddConsumerHandler("letters", "dead_letters", pubsub, p.handle)
	})
	runForwarder(t, h, pubsub, quickConfig(), nil)
	require.NoError(t, pubsub.Publish("orders", newMessage("")))
	eventually(t, func() bool { _, calls := p.deadLetters(); return calls >= 5 }, "the dead letter is delivered again")
	uuids, _ := p.deadLetters()
	assert.Len(t, uuids, 1)
	assert.Equal(t, 1, outboxed(t, h), "the dead letter of the order")
	assert.Positive(t, log.count("handling a dead letter failed: no dead letter is written for it"))
	assert.Equal(t, 1, h.count(t, "SELECT count(*) FROM inbox WHERE consumer = 'shop/letters' AND dead_at IS NULL "+
		"AND attempts > 0 AND last_error LIKE '%'||$1||'%'", errHandler.Error()),
		"operators see the failure")
	p.mend()
	h.reaches(t, 1, "and finally it is handled",
		"SELECT count(*) FROM inbox WHERE consumer = 'shop/letters' AND processed_at IS NOT NULL")
	assert.Equal(t, 1, outboxed(t, h))
}

// TestADeadLetterDiesWhereItIsStored: dead letters delivered from our own tables, which record deaths, die there.
func TestADeadLetterDiesWhereItIsStored(t *testing.T) {
	h := onPgx(t)
	s, p := storeOn(t, h, quickStore()), &poisoned{}
	storeAll(t, s, items("dead_letters", 1)...)
	h.publish(t, "dead_letters", "", "a dead letter")
	cfg := subscribing(quickConfig())
	cfg.Forwarder.MaxAttempts, cfg.Forwarder.MinDeadAge, cfg.Forwarder.DeadLetterTopic = 3, -1, "dead_letters"
	startRouter(t, func(r *message.Router) {
		r.AddMiddleware(stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{}, nil)...)
		r.AddConsumerHandler("of the queue", "dead_letters", subscriberOn(t, s, quickSubscriber()), p.handle)
		r.AddConsumerHandler("of the outbox", "dead_letters", startSubscriber(t, h, cfg), p.handle)
	})
	eventually(t, func() bool {
		return h.count(t, "SELECT count(*) FROM inbox_queue WHERE state = 'dead' AND last_error LIKE '%'||$1||'%'",
			errHandler.Error()) == 1 &&
			h.count(t, "SELECT count(*) FROM outbox WHERE dead_at IS NOT NULL AND last_error LIKE '%'||$1||'%'",
				errHandler.Error()) == 1
	}, "both are dead")
	assert.Equal(t, 1, outboxed(t, h), "the existing dead letter")
	uuids, calls := p.deadLetters()
	assert.Len(t, uuids, 2)
	assert.Equal(t, 1+3, calls)
}
