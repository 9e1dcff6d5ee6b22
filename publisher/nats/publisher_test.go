package nats_test

import (
	"net"
	"strings"
	"testing"
	"time"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"

	"github.com/millrace-go/watermill-outbox/publisher/nats"
)

func TestNewPublisherRefusesUnsafeConfig(t *testing.T) {
	tests := map[string]struct {
		config nats.PublisherConfig
		field  string
	}{
		"core NATS":          {nats.PublisherConfig{JetStream: wmnats.JetStreamConfig{Disabled: true}}, "JetStream.Disabled"},
		"UUID alone":         {nats.PublisherConfig{JetStream: wmnats.JetStreamConfig{TrackMsgId: true}}, "JetStream.TrackMsgId"},
		"limited reconnects": {nats.PublisherConfig{NatsOptions: []natsgo.Option{natsgo.MaxReconnects(3)}}, "MaxReconnects"},
		"no reconnects":      {nats.PublisherConfig{NatsOptions: []natsgo.Option{natsgo.NoReconnect()}}, "MaxReconnects"},
		"bad option":         {nats.PublisherConfig{NatsOptions: []natsgo.Option{natsgo.RootCAs("/does/not/exist")}}, "NatsOptions"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := nats.NewPublisher(tt.config, nil)
			if err == nil || !strings.Contains(err.Error(), tt.field) {
				t.Fatalf("got %v, want an error that names %s", err, tt.field)
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

	pub, err := nats.NewPublisher(nats.PublisherConfig{URL: "nats://" + nobody}, nil)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	err = pub.Publish("a", message.NewMessage("u", nil))
	if err == nil || nats.Classify(err) != unavailable {
		t.Errorf("without a server: %v, verdict %v, want unavailable", err, nats.Classify(err))
	}
	if took := time.Since(start); took > nats.AckWait {
		t.Errorf("took %v", took)
	}
	if err := pub.Close(); err != nil {
		t.Fatal(err)
	}
	if err := pub.Publish("a", message.NewMessage("u", nil)); nats.Classify(err) != unavailable {
		t.Errorf("after Close: %v, verdict %v, want unavailable", err, nats.Classify(err))
	}
}
