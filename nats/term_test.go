package nats

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace-go/watermill-outbox/internal/inbound"
	"github.com/millrace-go/watermill-outbox/observe"
)

// newTestTerm is a term of an owner that was delivered the messages of these stream positions, with the key "k".
func newTestTerm(t *testing.T, positions ...uint64) *term {
	cfg := SubscriberConfig{Consumer: "booking"}
	cfg.setDefaults()
	ctx, cancel := context.WithCancel(t.Context())
	sub := newSubscription(ctx, &cfg, "orders", watermill.NopLogger{})
	r := newReader(sub, nil, nil)
	t.Cleanup(func() {
		cancel()
		r.end()
		sub.reports.Stop()
	})
	r.term = newTerm(r, "pin")
	for i, pos := range positions {
		msg := natsgo.NewMsg("orders")
		msg.Header.Set("outbox_key", "k")
		msg.Header.Set(pinHeader, "pin")
		r.term.take(msg, &natsgo.MsgMetadata{Sequence: natsgo.SequencePair{Stream: pos, Consumer: uint64(i) + 1}})
	}
	return r.term
}

// TestOwnerWaitsForAllThatIsPending: what is held here and not pending any more, as the stream has dropped it, stands
// for no message that is still to come.
func TestOwnerWaitsForAllThatIsPending(t *testing.T) {
	info := func(pending int, floor, delivered uint64, pin string) *jetstream.ConsumerInfo {
		return &jetstream.ConsumerInfo{
			NumAckPending: pending, AckFloor: jetstream.SequenceInfo{Stream: floor},
			Delivered:      jetstream.SequenceInfo{Consumer: delivered},
			PriorityGroups: []jetstream.PriorityGroupState{{Group: group, PinnedClientID: pin}},
		}
	}
	for what, tt := range map[string]struct {
		info  *jetstream.ConsumerInfo
		whole bool
	}{
		"all are held":                     {info(2, 4, 2, "pin"), true},
		"one is acked late":                {info(1, 5, 2, "pin"), true},
		"one is to come":                   {info(3, 4, 2, "pin"), false},
		"one is on its way":                {info(2, 4, 3, "pin"), false},
		"one that is held left the stream": {info(2, 5, 2, "pin"), false},
	} {
		term := newTestTerm(t, 5, 8)
		term.compare(tt.info)
		if term.whole != tt.whole {
			t.Errorf("%s: whole is %t", what, term.whole)
		}
	}
	term := newTestTerm(t, 5, 8)
	if term.compare(info(2, 4, 2, "other")); term.reader.term != nil {
		t.Error("another process is the owner, and this one stays")
	}
}

// TestPinOfAMessage: it is known from the server alone, and one that nobody knows is confirmed before anything starts.
func TestPinOfAMessage(t *testing.T) {
	term := newTestTerm(t, 5)
	term.whole = true
	after := func(n uint64) *natsgo.MsgMetadata {
		return &natsgo.MsgMetadata{Sequence: natsgo.SequencePair{Stream: n, Consumer: n}}
	}
	if !term.owns("pin", after(2)) || term.owns("other", after(2)) || !term.owns("", after(2)) {
		t.Error("whose messages they are is mistaken")
	}
	if term.take(&natsgo.Msg{Subject: "orders"}, after(2)); term.whole {
		t.Error("a message without a pin is trusted")
	}
	term.pin = ""
	if term.owns("new", after(9)) {
		t.Error("a message after a gap gives a pin")
	}
	if !term.owns("new", after(3)) || term.pin != "new" {
		t.Error("the next message gives no pin")
	}
}

// TestHungHandlersAreTold: a consumer whose handlers never return is not silent.
func TestHungHandlersAreTold(t *testing.T) {
	term := newTestTerm(t, 5, 6)
	logger := watermill.NewCaptureLogger()
	term.logger = logger
	term.cfg.MaxAhead = 2
	term.pause = inbound.Pause{Since: time.Now().Add(-10 * time.Minute), Settled: time.Now().Add(-4 * time.Minute)}
	term.report()
	if lines := logger.Captured()[watermill.ErrorLogLevel]; len(lines) != 0 {
		t.Fatalf("slow handlers: %v", lines)
	}
	if why := inbound.Reason(term.pause, term.window, true); why != observe.PausedByHandlers {
		t.Fatalf("slow handlers: paused by %q", why)
	}
	term.pause.Settled = time.Now().Add(-5 * time.Minute)
	term.report()
	term.report()
	if lines := logger.Captured()[watermill.ErrorLogLevel]; len(lines) != 1 {
		t.Errorf("the log says %v", lines)
	}
	if blocked, _ := term.reports.Blocked(); len(blocked) != 1 || !blocked[0].Hung {
		t.Errorf("Doctor is told of %+v", blocked)
	}
}
