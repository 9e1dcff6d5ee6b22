package core

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
)

type anyWork struct{ Work }

func TestWorkCountsForItsMessageAlone(t *testing.T) {
	signed := func() *message.Message {
		msg := message.NewMessage("id", nil)
		msg.SetContext(WithWork(t.Context(), msg, anyWork{}))
		return msg
	}
	msg := signed()
	rest, w := TakeWork(msg)
	if w == nil {
		t.Fatal("the message has no work")
	}
	msg.SetContext(rest)
	if _, w := TakeWork(msg); w != nil {
		t.Error("the work is taken twice")
	}

	msg = signed()
	copied := msg.Copy()
	copied.SetContext(context.WithValue(msg.Context(), anyKey{}, "v"))
	if _, w := TakeWork(copied); w != nil {
		t.Error("a copy, as an in-process Pub/Sub makes them, has the work")
	}
	if ctx, w := TakeWork(message.NewMessage("id", nil)); w != nil || ctx == nil {
		t.Error("an unrelated message has the work")
	}
}
