package core

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// A sign counts for the message that it was made for, and not for one that got its context.
func TestOwnBackoffIsThatOfOneMessage(t *testing.T) {
	msg := message.NewMessage("1", nil)
	if OwnBackoff(msg) != nil {
		t.Fatal("nobody signed it")
	}
	var told time.Duration
	msg.SetContext(WithOwnBackoff(t.Context(), msg, func(wait time.Duration) { told = wait }))
	later := OwnBackoff(msg)
	if later == nil {
		t.Fatal("it is signed")
	}
	if later(time.Second); told != time.Second {
		t.Fatalf("told %s", told)
	}
	passedOn := message.NewMessage("2", nil)
	passedOn.SetContext(msg.Context())
	if OwnBackoff(passedOn) != nil || OwnBackoff(msg.Copy()) != nil {
		t.Error("the sign counts for another message")
	}
}
