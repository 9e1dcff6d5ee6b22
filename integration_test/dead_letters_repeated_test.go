package integration_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/middleware"
)

// poisoned is a handler of the dead-letter topic that poisons what it gets until it is mended, and remembers what that
// was.
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

// letters are the different messages that it got, and in how many calls.
func (p *poisoned) letters() (uuids []string, calls int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Compact(slices.Sorted(slices.Values(p.uuids))), len(p.uuids)
}

// TestNoLetterOfALetter: a handler of the dead-letter topic that poisons a letter gets it again, and no letter of it.
// One message would keep service and broker busy for ever.
func TestNoLetterOfALetter(t *testing.T) {
	h := onPgx(t)
	pubsub, p, log := inProcess(t, false), &poisoned{}, newLogCapture(t)
	stack := stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{Outcomes: middleware.OutcomesConfig{
		MaxAttempts: 1, MinDeadAge: -1, Backoff: outbox.Backoff{Initial: 10 * time.Millisecond, Max: 100 * time.Millisecond},
	}}, log)
	startRouter(t, func(r *message.Router) {
		r.AddMiddleware(stack...)
		r.AddConsumerHandler("orders", "orders", pubsub, func(*message.Message) error { return outbox.Poison(errHandler) })
		r.AddConsumerHandler("letters", "dead_letters", pubsub, p.handle)
	})
	f, err := forwarder.New(h.db, pubsub, quickConfig(), nil)
	require.NoError(t, err)
	runInBackground(t, f)
	require.NoError(t, pubsub.Publish("orders", newMessage("")))
	eventually(t, func() bool { _, calls := p.letters(); return calls >= 5 }, "the letter is delivered again")
	uuids, _ := p.letters()
	assert.Len(t, uuids, 1)
	assert.Equal(t, 1, outboxed(t, h), "the letter of the order")
	assert.Positive(t, log.count("dead letter failed: it gets no letter of its own"))
	assert.Equal(t, 1, h.count(t, "SELECT count(*) FROM inbox WHERE consumer = 'shop/letters' AND dead_at IS NULL "+
		"AND attempts > 0 AND last_error LIKE '%'||$1||'%'", errHandler.Error()),
		"an operator sees it fail")
	p.mend()
	eventually(t, func() bool {
		return h.count(t, "SELECT count(*) FROM inbox WHERE consumer = 'shop/letters' AND processed_at IS NOT NULL") == 1
	}, "and it is handled in the end")
	assert.Equal(t, 1, outboxed(t, h))
}

// TestALetterDiesWhereItIsStored: letters that are delivered from tables of our own, which remember who died, are dead
// there.
func TestALetterDiesWhereItIsStored(t *testing.T) {
	h := onPgx(t)
	s, p := storeOn(t, h, quickStore()), &poisoned{}
	storeAll(t, s, items("dead_letters", 1)...)
	h.publish(t, "dead_letters", "", "a letter")
	cfg := subscribing(quickConfig())
	cfg.MaxAttempts, cfg.MinDeadAge, cfg.DeadLetterTopic = 3, -1, "dead_letters"
	startRouter(t, func(r *message.Router) {
		r.AddMiddleware(stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{}, nil)...)
		r.AddConsumerHandler("of the queue", "dead_letters", subscriberOn(t, s, quickSubscriber()), p.handle)
		r.AddConsumerHandler("of the outbox", "dead_letters", startSubscriber(t, h, cfg), p.handle)
	})
	eventually(t, func() bool {
		return h.count(t, "SELECT count(*) FROM inbox_queue WHERE state = 'dead' AND last_error LIKE '%'||$1||'%'",
			errHandler.Error()) == 1 &&
			h.count(t, "SELECT count(*) FROM outbox WHERE dead_at IS NOT NULL") == 1
	}, "both are dead")
	assert.Equal(t, 1, outboxed(t, h), "the letter that was there")
	uuids, calls := p.letters()
	assert.Len(t, uuids, 2)
	assert.Equal(t, 1+3, calls)
}
