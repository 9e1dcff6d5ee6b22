package core

import (
	"io"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// The mark applies to its own message, not to others that got its context.
func TestOwnBackoffIsThatOfOneMessage(t *testing.T) {
	msg := message.NewMessage("1", nil)
	if OwnBackoff(msg) != nil {
		t.Fatal("no mark")
	}
	var told time.Duration
	var why error
	msg.SetContext(WithOwnBackoff(t.Context(), msg, func(wait time.Duration, err error) { told, why = wait, err }))
	later := OwnBackoff(msg)
	if later == nil {
		t.Fatal("it is marked")
	}
	if later(time.Second, io.EOF); told != time.Second || why != io.EOF {
		t.Fatalf("got %s, %v", told, why)
	}
	passedOn := message.NewMessage("2", nil)
	passedOn.SetContext(msg.Context())
	if OwnBackoff(passedOn) != nil || OwnBackoff(msg.Copy()) != nil {
		t.Error("the mark counts for another message")
	}
}
