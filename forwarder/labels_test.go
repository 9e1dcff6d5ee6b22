package forwarder

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// TestGoroutinesAreLabelled: a profile says of each goroutine what it does and for which outbox, also of a worker,
// which another goroutine starts.
func TestGoroutinesAreLabelled(t *testing.T) {
	called, goOn := make(chan struct{}), make(chan struct{})
	send := func(*callContext, core.Delivery, *message.Message) error {
		close(called)
		<-goOn
		return nil
	}
	e, err := newEngine(t.Context(), withoutServer(t), Config{Scope: "labels", Name: "me"}, send, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	e.pooled = true // it needs no connection to start
	end := e.reports.start(time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.run(ctx) }()
	term := board.Term{Lane: 1, Epoch: 1}
	e.step(func(now time.Time, m *machine.Machine) {
		starts(now, m, term)
		read(now, m, []*board.Row{{ID: 1, Term: term, Topic: "orders", Metadata: []byte("{}")}})
	})
	<-called
	missing := func() (names []string) {
		var profile bytes.Buffer
		if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{
			"reader", "settler", "keeper", "timer", "maintainer", "operator", "listener", "reporter", "worker",
		} {
			label := fmt.Sprintf(`{"outbox":%q, "outbox_db":%q, "outbox_forwarder":"me", "outbox_scope":"labels"}`, name,
				e.obs.db)
			if !strings.Contains(profile.String(), label) {
				names = append(names, name)
			}
		}
		return names
	}
	for deadline := time.Now().Add(time.Minute); len(missing()) > 0; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Errorf("no goroutine has the label of %v", missing())
			break
		}
	}
	close(goOn)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	end()
}
