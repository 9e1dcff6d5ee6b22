package forwarder

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/lanes"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// TestState: what a forwarder does shows in its state, while it does it.
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
	if s := f.State(); len(s.Lanes) > 0 || s.Share != -1 || s.Lease != 0 {
		t.Errorf("before Run: %s", s)
	}
	three, nine := board.Term{Lane: 3, Epoch: 5}, board.Term{Lane: 9, Epoch: 6}
	f.engine.step(func(now time.Time, m *machine.Machine) {
		starts(now, m, three)
		m.Took([]lanes.Term{nine})
		read(now, m, []*board.Row{{ID: 17, Term: three, Topic: "orders", Payload: []byte("four"), Metadata: []byte("{}")}})
		m.Hold(now, []string{"paused"})
		m.DrainBegins(false)
	})
	<-called
	s := f.State()
	want := []Lane{{Number: 3, Epoch: 5, State: LaneReading}, {Number: 9, Epoch: 6, State: LaneTaken}}
	if !slices.Equal(s.Lanes, want) || s.Messages != 1 || s.Publishing != 1 || s.Drains != 1 || s.Lease <= 0 ||
		!slices.Equal(s.ClosedTopics, []string{"paused"}) || s.Bytes != 6 || s.Hung != 0 {
		t.Errorf("while a message is being published: %+v", s)
	}
	close(goOn)
	f.engine.publishing.Wait()
	f.engine.step(func(now time.Time, m *machine.Machine) {
		m.Stop(now)
		f.engine.drains[1] = make(chan error, 1) // which Stop answers
	})
	if s = f.State(); s.Publishing != 0 || s.Unsettled != 1 || !s.Stopping || s.Lanes[0].State != LaneReleasing {
		t.Errorf("after a Stop: %+v", s)
	}

	end := f.engine.reports.start(time.Minute)
	f.LogState()
	end()
	logged := log.Captured()[watermill.InfoLogLevel]
	if len(logged) == 0 || !strings.HasPrefix(logged[len(logged)-1].Fields["state"].(string),
		"0 of 0 lanes read (3 releasing, 9 releasing); lease for ") {
		t.Errorf("%v was logged", logged)
	}
}
