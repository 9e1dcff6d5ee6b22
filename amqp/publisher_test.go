package amqp_test

import (
	"errors"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/millrace-go/watermill-outbox/amqp"
	"github.com/millrace-go/watermill-outbox/forwarder"
)

// nowhere is the URI of a server that does not exist.
const nowhere = "amqp://shop@127.0.0.1:1/"

// publish returns the error of publishing msg to topic with no server, and its verdict.
func publish(t *testing.T, cfg wmamqp.Config, topic string, msg *message.Message) (forwarder.Verdict, error) {
	t.Helper()
	pub, err := amqp.NewPublisher(amqp.PublisherConfig{Config: cfg}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var failed *forwarder.PublishError
	if err = pub.Publish(topic, msg); !errors.As(err, &failed) {
		t.Fatalf("got %v, want a forwarder.PublishError", err)
	}
	return failed.Verdict, err
}

// TestLongStrings: amqp091-go closes the connection, which fails all messages in flight, on a string that AMQP cannot
// carry.
func TestLongStrings(t *testing.T) {
	s := strings.Repeat("x", 256)
	events := wmamqp.NewDurableQueueConfig(nowhere)
	events.Marshaler = amqp.CloudEvents{Source: "/orders"}
	set := func(change func(*amqp091.Publishing)) wmamqp.Config {
		cfg := wmamqp.NewDurableQueueConfig(nowhere)
		cfg.Marshaler = wmamqp.DefaultMarshaler{PostprocessPublishing: func(p amqp091.Publishing) amqp091.Publishing {
			change(&p)
			return p
		}}
		return cfg
	}
	for name, c := range map[string]struct {
		cfg   wmamqp.Config
		topic string
		want  string
	}{
		"content type": {events, "orders", "content type"},
		"exchange":     {wmamqp.NewDurablePubSubConfig(nowhere, nil), s, "exchange"},
		"routing key":  {wmamqp.NewDurableQueueConfig(nowhere), s, "routing key"},
		"metadata key": {set(func(p *amqp091.Publishing) { p.Headers[s] = "" }), "orders", "metadata key"},
		"message id":   {set(func(p *amqp091.Publishing) { p.MessageId = s }), "orders", "message id"},
		"encoding":     {set(func(p *amqp091.Publishing) { p.ContentEncoding = s }), "orders", "property"},
		"correlation":  {set(func(p *amqp091.Publishing) { p.CorrelationId = s }), "orders", "property"},
		"reply to":     {set(func(p *amqp091.Publishing) { p.ReplyTo = s }), "orders", "property"},
		"expiration":   {set(func(p *amqp091.Publishing) { p.Expiration = s }), "orders", "property"},
		"type":         {set(func(p *amqp091.Publishing) { p.Type = s }), "orders", "property"},
		"user":         {set(func(p *amqp091.Publishing) { p.UserId = s }), "orders", "property"},
		"application":  {set(func(p *amqp091.Publishing) { p.AppId = s }), "orders", "property"},
	} {
		t.Run(name, func(t *testing.T) {
			msg := message.NewMessage("1", nil)
			msg.Metadata = message.Metadata{"event_type": "Placed", "content-type": s}
			verdict, err := publish(t, c.cfg, c.topic, msg)
			if verdict != forwarder.Permanent || !strings.Contains(err.Error(), c.want+" of 256 bytes") {
				t.Errorf("got %v, %v, want a permanent error about the %s", verdict, err, c.want)
			}
		})
	}
}

// TestMarshalerOfBothSides: watermill-amqp has one configuration for publisher and subscriber. A name that is encoded
// twice would reach the handler encoded.
func TestMarshalerOfBothSides(t *testing.T) {
	var sent amqp091.Table
	wrapped := amqp.Marshaler{Marshaler: wmamqp.DefaultMarshaler{
		PostprocessPublishing: func(p amqp091.Publishing) amqp091.Publishing {
			sent = p.Headers
			return p
		},
	}}
	for _, marshaler := range []wmamqp.Marshaler{wrapped.Marshaler, wrapped, &wrapped} {
		cfg := wmamqp.NewDurableQueueConfig(nowhere)
		cfg.Marshaler, sent = marshaler, nil
		msg := message.NewMessage("1", nil)
		msg.Metadata.Set("CC", "a")
		if _, err := publish(t, cfg, "orders", msg); err == nil {
			t.Error("published to nowhere")
		}
		if sent["%CC"] != "a" {
			t.Errorf("%T: sent %v", marshaler, sent)
		}
	}
}

// TestCallsShareAnAttemptToConnect: a broker that does not respond costs an attempt seconds. If each of many concurrent
// calls made its own, the last would wait for minutes, and so would Close.
func TestCallsShareAnAttemptToConnect(t *testing.T) {
	const calls = 64
	var attempts atomic.Int32
	goOn := make(chan struct{})
	cfg := wmamqp.NewDurableQueueConfig(nowhere)
	cfg.Connection.AmqpConfig = &amqp091.Config{Dial: func(string, string) (net.Conn, error) {
		attempts.Add(1)
		<-goOn
		return nil, errors.New("no response")
	}}
	pub, err := amqp.NewPublisher(amqp.PublisherConfig{Config: cfg}, nil)
	if err != nil {
		t.Fatal(err)
	}
	publish := func() {
		var failed *forwarder.PublishError
		err := pub.Publish("orders", message.NewMessage("1", nil))
		if !errors.As(err, &failed) || failed.Verdict != forwarder.Unavailable {
			t.Errorf("got %v, want an unavailable error", err)
		}
	}
	var callers sync.WaitGroup
	for range calls {
		callers.Go(publish)
	}
	for deadline := time.Now().Add(time.Minute); waiting() < calls-1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d calls wait for an attempt to connect, want %d", waiting(), calls-1)
		}
	}
	close(goOn)
	callers.Wait()
	made := attempts.Load()
	if made != 1 {
		t.Errorf("%d concurrent calls made %d attempts to connect, want 1", calls, made)
	}
	if publish(); attempts.Load() != made+1 {
		t.Error("a later call made no attempt of its own")
	}
}

// waiting returns the number of calls that wait for another's attempt to connect.
func waiting() (n int) {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for stack := range strings.SplitSeq(string(stacks), "\n\n") {
		if strings.Contains(stack, "(*Publisher).channel") && strings.Contains(stack, "sync.(*Mutex).Lock") {
			n++
		}
	}
	return n
}

// TestURIThatCannotBeParsed: the error of net/url, or of dialing half of a password, would contain the password.
func TestURIThatCannotBeParsed(t *testing.T) {
	for _, uri := range []string{
		"amqp://shop:canary/x@rabbit:5672/", "amqp://shop:canary?x@rabbit:5672/", "amqp://shop:canary#x@rabbit:5672/",
		"amqp://shop:x@canary/x@rabbit:5672/", "amqp://shop:x@canary?x@rabbit", "amqp://shop:x@canary#x@rabbit",
		"amqp://shop:1%-canary@rabbit/", "amqp://canary:1/x@rabbit/", "my_shop:canary@rabbit:5672", "canary",
		"amqp://shop:canary @rabbit/",
	} {
		_, err := amqp.NewPublisher(amqp.PublisherConfig{Config: wmamqp.NewDurableQueueConfig(uri)}, nil)
		if err == nil || strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), "AmqpURI") {
			t.Errorf("%s: got %v, want an error about the URI without it", uri, err)
		}
	}
	for _, uri := range []string{
		"amqp://", "amqps://rabbit", "amqp://shop:a%2Fb%40c@rabbit:5672/v%40host?heartbeat=5", "amqp://shop:a@b@rabbit/v",
	} {
		if _, err := amqp.NewPublisher(amqp.PublisherConfig{Config: wmamqp.NewDurableQueueConfig(uri)}, nil); err != nil {
			t.Errorf("%s: %v", uri, err)
		}
	}
}
