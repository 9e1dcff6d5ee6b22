package outboxtest

import (
	"cmp"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/middleware"
)

// Handled is the outcome of a delivery.
type Handled struct {
	// Acked reports whether a Router would ack the message: if it was handled now or before, or is dead and has a dead
	// letter. A nacked message is redelivered.
	Acked bool
	// Published are the messages committed to the outbox in the meantime: those that the handler returned or published,
	// dead letters, and those of concurrent transactions. They are still there for Drain.
	Published []Message
}

// Handle delivers one message through middleware.Stack to a handler, as a Router does. The error is the one that the
// Router would get, nil if the message is acked. Call it again with the same message for a second delivery, or with
// copies for concurrent deliveries. A panic of the handler is passed on after the rollback.
//
// cfg may be your Router's. Outside a Router a handler has no name and topic, so unless they are set Service is "test",
// Inbox.Consumer "handler" and Outbox.Topic "published". A failure does not wait before its nack unless
// ErrorHandler.Backoff is set. Any other fault of cfg ends the test.
func Handle(
	t testing.TB, db *outbox.DB, h message.HandlerFunc, msg *message.Message, cfg middleware.StackConfig,
) (Handled, error) {
	t.Helper()
	if h == nil || msg == nil {
		t.Fatal("outboxtest.Handle: the handler or the message is nil")
	}
	cfg.Service = cmp.Or(cfg.Service, "test")
	cfg.Inbox.Consumer = cmp.Or(cfg.Inbox.Consumer, "handler")
	cfg.Outbox.Topic = cmp.Or(cfg.Outbox.Topic, "published")
	if cfg.ErrorHandler.Backoff.Initial == 0 { // a Func decides in any case
		cfg.ErrorHandler.Backoff.Initial = -1
	}
	pub, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, nil)
	if err != nil {
		t.Fatalf("outboxtest.Handle: %v", err)
	}
	stack, err := middleware.Stack(pub, cfg, nil)
	if err != nil {
		t.Fatalf("outboxtest.Handle: %v", err)
	}
	for i := len(stack) - 1; i >= 0; i-- {
		h = stack[i](h)
	}
	before := last(t, db)
	_, err = h(msg)
	return Handled{Acked: err == nil, Published: past(t, db, before)}, err
}

// last returns the highest id in the outbox.
func last(t testing.TB, db *outbox.DB) (id int64) {
	t.Helper()
	collect(t, db, func(rows drive.Rows) error { return rows.Scan(&id) }, sqltext.LastMessage)
	return id
}

// past returns the messages in the outbox past an id.
func past(t testing.TB, db *outbox.DB, id int64) (list []Message) {
	t.Helper()
	collect(t, db, func(rows drive.Rows) error {
		var r row
		if err := rows.Scan(&r.uuid, &r.topic, &r.key, &r.payload, &r.metadata); err != nil {
			return err
		}
		list = append(list, r.message(t))
		return nil
	}, sqltext.MessagesPast, id)
	return list
}

func collect(t testing.TB, db *outbox.DB, scan func(drive.Rows) error, statement string, args ...any) {
	t.Helper()
	if err := drive.Collect(t.Context(), (*core.DB)(db), scan, (*core.DB)(db).Render(statement), args...); err != nil {
		t.Fatalf("outboxtest: read the outbox: %v", err)
	}
}
