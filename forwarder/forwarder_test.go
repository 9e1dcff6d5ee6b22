package forwarder

import (
	"regexp"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/coordinator"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/lanes"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// TestState: a running forwarder's state shows its current work.
func TestState(t *testing.T) {
	log := watermill.NewCaptureLogger()
	broker := gochannel.NewGoChannel(gochannel.Config{}, nil)
	f, err := New(withoutServer(t), broker, Config{LeaseTTL: time.Hour}, log)
	if err != nil {
		t.Fatal(err)
	}
	called, goOn := make(chan struct{}), make(chan struct{})
	f.engine.send = func(*callContext, core.Delivery, *message.Message) error {
		close(called)
		<-goOn
		return nil
	}
	shows := func(when, pattern string) {
		t.Helper()
		if s := f.State(); !regexp.MustCompile("^" + pattern + "$").MatchString(s) {
			t.Errorf("%s: %s", when, s)
		}
	}
	shows("before Run", "0 of 0 lanes read; no lease")
	three, nine := dispatch.Assignment{Lane: 3, Epoch: 5}, dispatch.Assignment{Lane: 9, Epoch: 6}
	f.engine.step(func(now time.Time, m *coordinator.Coordinator) {
		starts(now, m, three)
		m.Took([]lanes.Assignment{nine})
		read(now, m, []*dispatch.Row{
			{ID: 17, Assignment: three, Topic: "orders", Payload: []byte("four"), Metadata: []byte("{}")},
		})
		m.PauseByOperator(now, []string{"paused"})
		m.DrainBegins(false)
	})
	<-called
	shows("while a message is being published",
		`1 of 0 lanes read \(9 taken\); lease for \S+; messages in memory: 1; 6 bytes; `+
			`1 publishing; topics not published to \["paused"\]; 1 waiting calls of Drain.*`)
	close(goOn)
	f.engine.publishing.Wait()
	f.engine.step(func(now time.Time, m *coordinator.Coordinator) {
		m.Stop(now)
		f.engine.drains[1] = make(chan error, 1) // which Stop completes
	})
	shows("after a Stop", `0 of 0 lanes read \(3 releasing, 9 releasing\); lease for \S+; .*\b1 unsettled;.*; stopping`)
}
