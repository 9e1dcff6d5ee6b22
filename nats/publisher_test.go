package nats_test

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/nats"
)

func TestNewPublisherRefusesUnsafeConfig(t *testing.T) {
	tests := map[string]struct {
		config nats.PublisherConfig
		field  string
	}{
		"core NATS": {nats.PublisherConfig{JetStream: wmnats.JetStreamConfig{Disabled: true}}, "JetStream.Disabled"},
		"UUID alone": {
			nats.PublisherConfig{JetStream: wmnats.JetStreamConfig{TrackMsgId: true}}, "JetStream.TrackMsgId",
		},
		"limited reconnects": {nats.PublisherConfig{Options: []natsgo.Option{natsgo.MaxReconnects(3)}}, "MaxReconnects"},
		"no reconnects":      {nats.PublisherConfig{Options: []natsgo.Option{natsgo.NoReconnect()}}, "MaxReconnects"},
		"no timeout":         {nats.PublisherConfig{AckTimeout: -1}, "AckTimeout"},
		"bad option": {
			nats.PublisherConfig{Options: []natsgo.Option{natsgo.RootCAs("/does/not/exist")}}, "PublisherConfig.Options",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := nats.NewPublisher(tt.config, nil)
			if err == nil || !strings.Contains(err.Error(), tt.field) {
				t.Fatalf("got %v, want an error naming %s", err, tt.field)
			}
		})
	}
}

func TestPublisherStartsBeforeTheServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := l.Addr().String()
	_ = l.Close()

	pub, err := nats.NewPublisher(nats.PublisherConfig{URL: "nats://" + nobody, AckTimeout: time.Hour}, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = pub.Publish("a", message.NewMessage("u", nil))
	if err == nil || verdict(err) != unavailable {
		t.Errorf("without a server: %v, verdict %v, want unavailable", err, verdict(err))
	}
	if err != nil && !strings.Contains(err.Error(), "not connected") {
		t.Errorf("without a server: %v, want not connected", err)
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := pub.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	err = pub.Publish("a", message.NewMessage("u", nil))
	if !errors.Is(err, outbox.ErrClosed) || verdict(err) != unavailable {
		t.Errorf("after Close: %v, verdict %v, want ErrClosed, unavailable", err, verdict(err))
	}
	for deadline := time.Now().Add(time.Minute); strings.Contains(goroutines(),
		"nats.(*Conn)"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the connection is still open:\n%s", goroutines())
		}
	}
}

func goroutines() string {
	stacks := make([]byte, 1<<20)
	return string(stacks[:runtime.Stack(stacks, true)])
}

// deaf is a publisher that must not be called.
type deaf struct{ message.Publisher }

// TestURLsAreNotQuoted: an error about a URL must not show its password.
func TestURLsAreNotQuoted(t *testing.T) {
	for _, urls := range []string{
		"nats://ann:can/ary@h:4222", "nats://ann:1/canary@h:4222", "nats://ann:can?ary@h", "nats://ann:1#canary@h",
		"ann:can/ary@h:4222", "nats://h,nats://ann:can ary@h", "nats://ann:can%ary@h", "nats://ann:can,ary@h",
	} {
		pub, err := nats.NewPublisher(nats.PublisherConfig{URL: urls}, nil)
		log, errLog := nats.NewTopicReader(nats.TopicReaderConfig{URL: urls}, nil)
		if err == nil || errLog == nil {
			t.Errorf("%s: made %v and %v", urls, pub, log)
			continue
		}
		for _, err := range []error{err, errLog} {
			if said := err.Error(); strings.Contains(said, "can") && !strings.Contains(said, "cannot") ||
				strings.Contains(said, "ary@") || !strings.Contains(said, "Config.URL: server ") || !strings.Contains(said, "%XX") {
				t.Errorf("%s: %s", urls, said)
			}
		}
	}
	for _, urls := range []string{
		"127.0.0.1:1", "nats://127.0.0.1:1/", "nats://127.0.0.1:1, nats://[::1]:1", "nats://127.0.0.1:1, 127.0.0.1:2 ",
		" 127.0.0.1:1", "tls://ann:c%2Fy@127.0.0.1:1",
	} {
		pub, err := nats.NewPublisher(nats.PublisherConfig{URL: urls}, nil)
		if err != nil {
			t.Errorf("%s: %v", urls, err)
			continue
		}
		_ = pub.Close()
	}
}

func TestNilsAreErrors(t *testing.T) {
	pub := nats.NewPublisherTo(deaf{})
	err := pub.Publish("a", message.NewMessage("u", nil), nil)
	if !errors.Is(err, outbox.ErrInvalidMessage) || !strings.Contains(err.Error(), "2 of 2 is nil") ||
		verdict(err) != permanent {
		t.Errorf("nil message: got %v, %v", err, verdict(err))
	}
}

// failing returns errors like watermill-nats's, which print a stack with %+v.
type failing struct {
	message.Publisher
	err error
}

func (f failing) Publish(string, ...*message.Message) error { return stacked{f.err} }

type stacked struct{ error }

func (s stacked) Unwrap() error { return s.error }

func (s stacked) Format(f fmt.State, _ rune) {
	fmt.Fprint(f, s.Error())
	if f.Flag('+') {
		fmt.Fprint(f, "\n\t/publisher.go:151")
	}
}

func TestPublishErrorsNameTopicAndCure(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		cure string
	}{
		"no stream":           {natsgo.ErrNoStreamResponse, "create a stream with this subject"},
		"no JetStream":        {natsgo.ErrNoResponders, "check that JetStream is running"},
		"the connection lost": {natsgo.ErrReconnectBufExceeded, "not connected"},
		"no connection yet":   {natsgo.ErrHeadersNotSupported, "not connected"},
		"another error":       {natsgo.ErrTimeout, ""},
	} {
		t.Run(name, func(t *testing.T) {
			pub := nats.NewPublisherTo(failing{err: tt.err})
			err := pub.Publish("orders", message.NewMessage("u", nil))
			if !errors.Is(err, tt.err) || verdict(err) != unavailable {
				t.Errorf("got %v, verdict %v, want %v, unavailable", err, verdict(err), tt.err)
			}
			if text := fmt.Sprintf("%+v", err); !strings.Contains(text, `"orders"`) || !strings.Contains(text, tt.cure) ||
				strings.Contains(text, "publisher.go") {
				t.Errorf("got %q, want the topic, the cure %q and no stack", text, tt.cure)
			}
		})
	}
}
