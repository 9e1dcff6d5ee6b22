package core

import (
	"context"
	"testing"

	"github.com/millrace-go/watermill-outbox/internal/facts"
)

// TestSourcesEndWithoutAForwarder: a process without a forwarder does not keep ended subscriptions.
func TestSourcesEndWithoutAForwarder(t *testing.T) {
	db := &DB{}
	for range 10 {
		over := false
		s := &Source{Blocked: func() ([]facts.Partition, bool) { return nil, over }}
		db.ReadsFrom(WithSource(context.Background(), s))
		over = true
	}
	n := 0
	for range db.sources.known.Range {
		n++
	}
	if n > 1 {
		t.Errorf("%d ended subscriptions are kept", n)
	}
}
