package outboxtest

import (
	"context"
	"testing"
	"time"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// drainTimeout is how long Drain may take.
const drainTimeout = time.Minute

// Drain returns the messages that a forwarder would publish now, in order, and marks them published. Messages that are
// not committed or not due stay.
//
// It runs a forwarder, which needs the tables of schema.Migrate, and ends the test if that takes a minute, for example
// because a topic is paused.
func Drain(t testing.TB, db *outbox.DB) []Message {
	t.Helper()
	if err := (*core.DB)(db).Check(); err != nil {
		t.Fatalf("outboxtest.Drain: %v", err)
	}
	var pub Publisher
	// With one publish at a time, messages are recorded in the order of the forwarder.
	fwd, err := forwarder.New(db, &pub, forwarder.Config{
		Name: "outboxtest", Concurrency: 1, DisableListen: true, InboxRetention: -1,
	}, nil)
	if err != nil {
		t.Fatalf("outboxtest.Drain: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), drainTimeout)
	defer cancel()
	if err := fwd.Drain(ctx); err != nil {
		t.Fatalf("outboxtest.Drain: %v", err)
	}
	return pub.Messages()
}
