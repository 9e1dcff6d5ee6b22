package forwarder_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/forwarder"
)

func TestGroupConfig(t *testing.T) {
	databases, err := fleet.New(fleet.Static(), fleet.Config{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	broker := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	defer broker.Close()
	if _, err := forwarder.NewGroup(nil, broker, forwarder.GroupConfig{}, nil); err == nil ||
		!strings.Contains(err.Error(), "fleet.New") {
		t.Error(err)
	}
	if _, err := forwarder.NewGroup(databases, nil, forwarder.GroupConfig{}, nil); err == nil ||
		!strings.Contains(err.Error(), "pass the broker's publisher") {
		t.Error(err)
	}
	_, err = forwarder.NewGroup(databases, broker, forwarder.GroupConfig{
		IdlePollInterval: -1, IdleAfter: -time.Second, MaxActive: -1, Forwarder: forwarder.Config{Concurrency: -1},
	}, nil)
	for _, want := range []string{
		"GroupConfig.IdlePollInterval is -1ns", "GroupConfig.IdleAfter is -1s", "GroupConfig.MaxActive is -1",
		"GroupConfig.Forwarder.Concurrency is -1",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	g, err := forwarder.NewGroup(databases, broker, forwarder.GroupConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	g.Close()
	if err := g.Run(t.Context()); !errors.Is(err, outbox.ErrClosed) {
		t.Error(err)
	}
}
