package integration_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe"
)

// fakeWork is claimed work whose settling can be seen in the table of effects.
type fakeWork struct {
	h             handle
	lost, last    bool
	notes         []error
	acks, unacked int
}

func (w *fakeWork) settle(ctx context.Context, how string) (bool, error) {
	w.acks++
	return !w.lost, w.h.execTx(ctx, `insert into effects (message_id, note) values ('work', $1)`, how)
}

func (w *fakeWork) Ack(ctx context.Context) (bool, error)                    { return w.settle(ctx, "acked") }
func (w *fakeWork) Unack(context.Context) error                              { w.unacked++; return nil }
func (w *fakeWork) Dead(ctx context.Context, _ string) (bool, error)         { return w.settle(ctx, "dead") }
func (w *fakeWork) Failed() bool                                             { return false }
func (w *fakeWork) AckAll(context.Context, []core.Work) ([]core.Work, error) { return nil, nil }
func (w *fakeWork) Last() bool                                               { return w.last }
func (w *fakeWork) Note(err error)                                           { w.notes = append(w.notes, err) }

// of makes a message of it.
func (w *fakeWork) of(t testing.TB, id string) *message.Message {
	msg := message.NewMessage(id, nil)
	msg.SetContext(core.WithWork(t.Context(), msg, w))
	return msg
}

// TestClaimedWork is settled in the transaction of its handler, or of its dead letter.
func TestClaimedWork(t *testing.T) {
	h := onPgx(t)
	newEffects(t, h)
	seen := &seen{}
	h = h.seenBy(t, seen)
	stack := stack(t, h, middleware.StackConfig{})
	handled := func(handler message.HandlerFunc, w *fakeWork) error {
		t.Helper()
		h.exec(t, "truncate effects, outbox, inbox")
		seen.all = nil
		_, err := chain(handler, stack...)(w.of(t, "id"))
		return err
	}
	notes := func() []string { return column[string](t, h, "select note from effects order by note") }

	w := &fakeWork{h: h}
	require.NoError(t, handled(book(h), w))
	assert.Equal(t, []string{"", "acked"}, notes(), "the ack commits with what the handler wrote")
	assert.Equal(t, 1, outboxed(t, h))
	assert.Zero(t, h.count(t, "select count(*) from inbox"), "and takes the place of the note")

	w = &fakeWork{h: h, lost: true, last: true}
	require.ErrorIs(t, handled(book(h), w), core.ErrLeaseLost)
	assert.Empty(t, notes(), "nothing of a message that is somebody else's")
	assert.Zero(t, outboxed(t, h), "not even a dead letter")

	w = &fakeWork{h: h}
	require.ErrorIs(t, handled(failing(book(h), errHandler), w), errHandler)
	assert.Empty(t, notes())
	require.Len(t, w.notes, 1)
	require.ErrorIs(t, w.notes[0], errHandler)

	poison := failing(book(h), outbox.Poison(errHandler))
	require.NoError(t, handled(poison, &fakeWork{h: h}))
	assert.Equal(t, []string{"dead"}, notes())
	assert.Equal(t, 1, h.count(t, "select count(*) from outbox where topic = 'dead_letters'"))
	require.NoError(t, handled(failing(book(h), errHandler), &fakeWork{h: h, last: true}), "its last attempt")
	assert.Equal(t, []string{"dead"}, notes())
	h.exec(t, "alter table outbox add constraint refused check (topic <> 'dead_letters') not valid")
	require.Error(t, handled(poison, &fakeWork{h: h}))
	assert.Empty(t, notes(), "neither dead nor a letter")
	h.exec(t, "alter table outbox drop constraint refused")

	// It belongs to somebody else by the time that it dies.
	late := &fakeWork{h: h}
	require.NoError(t, handled(func(*message.Message) ([]*message.Message, error) {
		late.lost = true
		return nil, outbox.Poison(errHandler)
	}, late))
	assert.Equal(t, []observe.Outcome{observe.Duplicate}, seen.outcomes())
	assert.Zero(t, outboxed(t, h))

	w = &fakeWork{h: h}
	err := handled(func(msg *message.Message) ([]*message.Message, error) {
		return nil, h.execFirst(msg.Context(), "commit")
	}, w)
	require.ErrorIs(t, err, outbox.ErrTxEnded)
	assert.Equal(t, 1, w.unacked, "the handler committed the ack, and it is taken back")
}

// TestClaimedWorkTwice: a handler that the message reaches through two Inboxes is told so.
func TestClaimedWorkTwice(t *testing.T) {
	h := onPgx(t)
	newEffects(t, h)
	w := &fakeWork{h: h}
	_, err := chain(bookSilently(h), newTx(t, h, middleware.TxConfig{}),
		newInbox(t, h, middleware.InboxConfig{}), newInbox(t, h, middleware.InboxConfig{}))(w.of(t, "id"))
	require.ErrorContains(t, err, "add middleware.Inbox once")
	require.NoError(t, outbox.InTx(t.Context(), h.db, func(ctx context.Context) error {
		msg := message.NewMessage("id", nil)
		msg.SetContext(core.WithWork(ctx, msg, w))
		_, err := chain(bookSilently(h), newInbox(t, h, middleware.InboxConfig{}))(msg)
		return err
	}), "it needs nothing but a transaction around it")
}

// TestClaimedWorkOfAnotherDatabase is noted in the inbox like any other message.
func TestClaimedWorkOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	h, other := newPgxHandle(t, newMigratedDatabase(t)), newPgxHandle(t, newMigratedDatabase(t))
	newEffects(t, h)
	w := &elsewhere{fakeWork{h: other}}
	msg := message.NewMessage("id", nil)
	msg.SetContext(core.WithWork(t.Context(), msg, w))
	_, err := chain(book(h), stack(t, h, middleware.StackConfig{})...)(msg)
	require.NoError(t, err)
	assert.Equal(t, 1, effects(t, h, msg))
	assert.Equal(t, 1, h.count(t, "select count(*) from inbox where processed_at is not null"))
}

// elsewhere finds no transaction of its own database.
type elsewhere struct{ fakeWork }

func (w *elsewhere) Ack(ctx context.Context) (bool, error) {
	_, err := (*core.DB)(w.h.db).Tx(ctx)
	return false, err
}

// TestClaimedWorkStaysWithItsHandler follows a context through a Pub/Sub within the process.
func TestClaimedWorkStaysWithItsHandler(t *testing.T) {
	h := onPgx(t)
	newEffects(t, h)
	pubsub := gochannel.NewGoChannel(gochannel.Config{PreserveContext: true}, watermill.NopLogger{})
	t.Cleanup(func() { assert.NoError(t, pubsub.Close()) })
	inner, err := pubsub.Subscribe(t.Context(), "inner")
	require.NoError(t, err)
	w := &fakeWork{h: h}
	relayed := make(chan error, 1)
	go func() {
		msg := <-inner
		_, err := chain(bookSilently(h), stack(t, h, middleware.StackConfig{})...)(msg)
		msg.Ack()
		relayed <- err
	}()
	_, err = chain(func(msg *message.Message) ([]*message.Message, error) {
		out := message.NewMessage("inner", nil)
		out.SetContext(outbox.OutsideTx(msg.Context()))
		return nil, errors.Join(pubsub.Publish("inner", out), write(h, msg))
	}, stack(t, h, middleware.StackConfig{})...)(w.of(t, "outer"))
	require.NoError(t, err)
	require.NoError(t, <-relayed)
	assert.Equal(t, 1, w.acks)
	assert.Equal(t, []string{"inner", "outer", "work"}, column[string](t, h, "select message_id from effects order by 1"))
}
