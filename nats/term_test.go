package nats

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace-go/watermill-outbox/internal/inbound"
	"github.com/millrace-go/watermill-outbox/internal/meter"
)

// newTestTerm returns the term of an owner that received the messages at these stream positions, with the key "k".
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

// TestOwnerWaitsForAllThatIsPending: held messages that the stream has dropped are no longer pending, and must not be
// counted in place of messages still to come.
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
		"all held":                               {info(2, 4, 2, "pin"), true},
		"one acked late":                         {info(1, 5, 2, "pin"), true},
		"one not delivered yet":                  {info(3, 4, 2, "pin"), false},
		"one in transit":                         {info(2, 4, 3, "pin"), false},
		"a held one was deleted from the stream": {info(2, 5, 2, "pin"), false},
	} {
		term := newTestTerm(t, 5, 8)
		term.compare(tt.info)
		if term.whole != tt.whole {
			t.Errorf("%s: whole is %t", what, term.whole)
		}
	}
	term := newTestTerm(t, 5, 8)
	if term.compare(info(2, 4, 2, "other")); term.reader.term != nil {
		t.Error("this process stays the owner although another one is")
	}
}

// TestAGapIsWaitedFor: a lost delivery may be older than later ones.
func TestAGapIsWaitedFor(t *testing.T) {
	term := newTestTerm(t, 5)
	term.whole = true
	next := func(stream, consumer uint64) {
		msg := natsgo.NewMsg("orders")
		msg.Header.Set(pinHeader, "pin")
		term.take(msg, &natsgo.MsgMetadata{Sequence: natsgo.SequencePair{Stream: stream, Consumer: consumer}})
	}
	if next(6, 2); !term.whole {
		t.Error("the next delivery counts as a gap")
	}
	if next(8, 4); term.whole {
		t.Error("a gap is not noticed: the key's next message is handled before the lost one")
	}
}

// TestASlowReaderDropsNoMessage: the deadline of a pull is for its reply, not for a reader that takes messages late.
// JetStream delivers messages that are dropped only after AckWait.
func TestASlowReaderDropsNoMessage(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const batch = 3
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = conn.Write([]byte("INFO {\"max_payload\":1048576}\r\n"))
		var inbox, sid string
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			switch words := strings.Fields(lines.Text()); {
			case len(words) == 0:
			case words[0] == "PING":
				_, _ = conn.Write([]byte("PONG\r\n"))
			case words[0] == "SUB":
				inbox, sid = words[1], words[2]
			case words[0] == "PUB":
				one := fmt.Sprintf("MSG %s %s $JS.ACK.one 2\r\nhi\r\n", inbox, sid)
				_, _ = conn.Write([]byte(strings.Repeat(one, batch)))
			}
		}
	}()
	r := newTestTerm(t).reader
	if r.conn, err = natsgo.Connect(l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	defer r.conn.Close()
	r.from = &source{next: "next"}
	fetched := make(chan error, 1)
	go func() { fetched <- r.fetch(pull{sent: time.Now()}, batch, 0, "") }()
	<-r.in
	<-time.After(lateReply * 5 / 4) // the deadline is over
	for range batch - 1 {
		select {
		case <-r.in:
		case err := <-fetched:
			t.Fatal("messages were dropped:", err)
		}
	}
	if err := <-fetched; err != nil {
		t.Error(err)
	}
}

// sentFor returns the number of acks and naks sent for a message since the last call. Nothing receives them.
func sentFor(t *testing.T, msg *natsgo.Msg) (sent func() uint64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = conn.Write([]byte("INFO {\"max_payload\":1048576}\r\n"))
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			if lines.Text() == "PING" {
				_, _ = conn.Write([]byte("PONG\r\n"))
			}
		}
	}()
	conn, err := natsgo.Connect(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	msg.Reply = "$JS.ACK"
	if msg.Sub, err = conn.SubscribeSync("orders"); err != nil {
		t.Fatal(err)
	}
	var before uint64
	return func() uint64 {
		all := conn.Stats().OutMsgs
		since := all - before
		before = all
		return since
	}
}

// TestWithoutALeaseNothingIsDone: another process may be the owner, and rely on the list of pending messages.
func TestWithoutALeaseNothingIsDone(t *testing.T) {
	term := newTestTerm(t, 5)
	term.whole = true
	if term.start(); term.running > 0 {
		t.Fatal("a message is delivered without a lease")
	}
	in := term.held[5].Value.in
	sent := sentFor(t, in)
	if term.ack(in); sent() > 0 {
		t.Error("an ack is sent without a lease")
	}
	if term.ackAgain(); sent() > 0 || len(term.unacked) != 1 {
		t.Error("an ack is not kept for the lease")
	}
	term.renew(time.Now())
	if term.ackAgain(); sent() != 1 || len(term.unacked) != 0 {
		t.Error("an ack is not sent with the next lease")
	}
}

// TestWhatAHandlerHasIsNotHandedBack: JetStream would immediately deliver it to the next owner.
func TestWhatAHandlerHasIsNotHandedBack(t *testing.T) {
	term := newTestTerm(t, 5)
	it := term.held[5]
	sent := sentFor(t, it.Value.in)
	it.Value.out = true
	if term.handBack(); sent() > 0 {
		t.Error("the message is returned while a handler has it")
	}
	it.Value.out = false
	if term.handBack(); sent() != 1 {
		t.Error("the message is not returned")
	}
}

// TestPinOfAMessage: only the server sets it, and an unknown pin is confirmed before a handler starts.
func TestPinOfAMessage(t *testing.T) {
	term := newTestTerm(t, 5)
	term.whole = true
	after := func(n uint64) *natsgo.MsgMetadata {
		return &natsgo.MsgMetadata{Sequence: natsgo.SequencePair{Stream: n, Consumer: n}}
	}
	if !term.owns("pin", after(2)) || term.owns("other", after(2)) || !term.owns("", after(2)) {
		t.Error("the owner of the messages is wrong")
	}
	if term.take(&natsgo.Msg{Subject: "orders"}, after(2)); term.whole {
		t.Error("a message without a pin is trusted")
	}
	term.pin = ""
	if term.owns("new", after(9)) {
		t.Error("a message after a gap confirms a pin")
	}
	if !term.owns("new", after(3)) || term.pin != "new" {
		t.Error("the next message confirms no pin")
	}
}

// TestHungHandlersAreReported: a consumer whose handlers never return is reported.
func TestHungHandlersAreReported(t *testing.T) {
	term := newTestTerm(t, 5, 6)
	logger := watermill.NewCaptureLogger()
	term.logger = logger
	term.cfg.MaxAhead = 2
	term.pause = inbound.Pause{Since: time.Now().Add(-10 * time.Minute), Active: time.Now().Add(-4 * time.Minute)}
	term.report()
	if lines := logger.Captured()[watermill.ErrorLogLevel]; len(lines) != 0 {
		t.Fatalf("slow handlers: %v", lines)
	}
	if why := inbound.Reason(term.pause, term.window, true); why != meter.PausedByHandlers {
		t.Fatalf("slow handlers: paused by %q", why)
	}
	term.pause.Active = time.Now().Add(-5 * time.Minute)
	term.report()
	term.report()
	if lines := logger.Captured()[watermill.ErrorLogLevel]; len(lines) != 1 {
		t.Errorf("the log has %v", lines)
	}
	if blocked, _ := term.reports.Blocked(); len(blocked) != 1 || !blocked[0].Hung {
		t.Errorf("Doctor gets %+v", blocked)
	}
}

// TestHungHandlersAreReportedBelowTheLimits: they are reported as soon as other messages wait for them, not when
// MaxAhead messages do.
func TestHungHandlersAreReportedBelowTheLimits(t *testing.T) {
	term := newTestTerm(t, 5, 6)
	logger := watermill.NewCaptureLogger()
	term.logger, term.running = logger, 1
	for active, want := range map[time.Duration]int{4 * time.Minute: 0, 5 * time.Minute: 1} {
		term.pause = inbound.Pause{Active: time.Now().Add(-active)}
		term.report()
		if blocked, _ := term.reports.Blocked(); len(blocked) != want {
			t.Errorf("no handler has returned for %s: Doctor gets %+v", active, blocked)
		}
	}
	term.running = 0
	term.report()
	if !term.pause.Since.IsZero() {
		t.Error("it is still paused after they returned")
	}
}
