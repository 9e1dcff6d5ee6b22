package core

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
)

// TestTreeEndsWhereARouterDelivers follows a context through a Pub/Sub that passes contexts on, back to the same
// handler.
func TestTreeEndsWhereARouterDelivers(t *testing.T) {
	if handlerNameKey == nil {
		t.Fatal("Watermill's key is unknown")
	}
	pubsub := gochannel.NewGoChannel(gochannel.Config{PreserveContext: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	received := make(chan context.Context, 1)
	router.AddConsumerHandler("handler", "topic", pubsub, func(msg *message.Message) error {
		received <- msg.Context()
		return nil
	})
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()
	defer func() {
		if err := router.Close(); err != nil {
			t.Error(err)
		}
		<-ended
	}()
	deliver := func(ctx context.Context) context.Context {
		msg := message.NewMessage("id", nil)
		msg.SetContext(ctx)
		if err := pubsub.Publish("topic", msg); err != nil {
			t.Fatal(err)
		}
		select {
		case ctx := <-received:
			return ctx
		case <-time.After(time.Minute):
			t.Fatal("nothing delivered")
			return nil
		}
	}

	outside := bindTx(t.Context(), "outside")
	first := deliver(outside)
	if txFrom(outside) != "outside" || txFrom(first) != nil {
		t.Error("the handler finds the publisher's transaction")
	}
	if txFrom(AdoptTx(first)) != "outside" {
		t.Error("the handler cannot join it although it is configured to")
	}
	inFirst := bindTx(first, "first")
	for name, ctx := range map[string]context.Context{
		"itself": inFirst, "derived": context.WithValue(context.WithoutCancel(inFirst), anyKey{}, "v"),
		"marked": func() context.Context { ctx, _ := TreeOf(inFirst); return ctx }(),
	} {
		if txFrom(ctx) != "first" {
			t.Errorf("%s: the handler does not find its own transaction", name)
		}
	}
	if txFrom(bindTx(inFirst, nil)) != nil {
		t.Error("nil does not hide the transaction")
	}
	if message.HandlerNameFromCtx(inFirst) != "handler" {
		t.Error("the name of the handler is lost")
	}
	second := deliver(inFirst)
	if txFrom(second) != nil {
		t.Error("the same handler, called again, finds the transaction of its first call")
	}
	if txFrom(bindTx(second, "second")) != "second" || txFrom(inFirst) != "first" {
		t.Error("the two calls do not each find their own transaction")
	}
}

type anyKey struct{}
