package outboxtest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/outboxtest"
)

var errTest = errors.New("requested by the test")

func TestPublisherRecordsAndFailsOnCue(t *testing.T) {
	var pub outboxtest.Publisher
	msg := message.NewMessage("1", []byte("a"))
	pub.Fail(2, errTest)
	for _, want := range []error{errTest, errTest, nil} {
		if err := pub.Publish("topic", msg, message.NewMessage("2", []byte("b"))); err != want {
			t.Errorf("%v, want %v", err, want)
		}
	}
	msg.Payload[0] = 'x'
	if all := pub.Messages(); len(all) != 2 || string(all[0].Payload) != "a" || all[0].Topic != "topic" {
		t.Error(all)
	}
	pub.Fail(-1, nil)
	for range 3 {
		if err := pub.Publish("topic", msg); err == nil {
			t.Error("it published")
		}
	}
	pub.Fail(0, nil)
	if err := pub.Publish("topic", msg); err != nil {
		t.Error(err)
	}
	if err := errors.Join(pub.Close(), pub.Close()); err != nil {
		t.Error(err)
	}
	if err := pub.Publish("topic", msg); err != outbox.ErrClosed {
		t.Error(err)
	}
}

func TestPublisherBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pub outboxtest.Publisher
		results := make(chan error, 1)
		publish := func(ctx context.Context) {
			msg := message.NewMessage("1", nil)
			msg.SetContext(ctx)
			go func() { results <- pub.Publish("topic", msg) }()
			synctest.Wait()
		}
		came := func(want bool) {
			t.Helper()
			synctest.Wait()
			if is := len(results) == 1; is != want {
				t.Errorf("the call has returned: %v", is)
			}
		}
		release := pub.Block()
		pub.Block()
		publish(t.Context())
		came(false)
		release()
		release()
		came(true)
		if err := <-results; err != nil || len(pub.Messages()) != 1 {
			t.Error(err)
		}

		pub.Block()
		ctx, cancel := context.WithCancel(t.Context())
		publish(ctx)
		cancel()
		if err := <-results; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		publish(t.Context())
		if err := pub.Close(); err != nil {
			t.Error(err)
		}
		if err := <-results; err != outbox.ErrClosed {
			t.Error(err)
		}
	})
}
