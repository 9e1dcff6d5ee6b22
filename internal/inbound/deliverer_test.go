package inbound

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// TestUnreadableMessagesAreNotQuoted: the cause of a pause is logged, so it has no payload that user code quotes.
func TestUnreadableMessagesAreNotQuoted(t *testing.T) {
	key := func(rec string) []byte { panic(fmt.Sprintf("bad key %q", rec)) }
	unmarshal := func(rec string) (*message.Message, error) { return nil, fmt.Errorf("bad body %q", rec) }
	for want, unkeyed := range map[string]bool{"bad key": true, "bad body": false} {
		log := watermill.NewCaptureLogger()
		d := NewDeliverer(t.Context(), nil, key, unmarshal)
		got := d.Deliver(Delivery[string]{Record: "canary", Unkeyed: unkeyed, Context: t.Context(), Logger: log})
		lines := log.Captured()[watermill.ErrorLogLevel]
		if got.Verdict != Nacked || got.Cause == nil || len(lines) != 1 {
			t.Fatalf("%s: %+v, logged %v", want, got, lines)
		}
		for _, err := range []error{got.Cause, lines[0].Err} {
			if text := err.Error(); strings.Contains(text, "canary") || !strings.Contains(text, want) {
				t.Errorf("%q", text)
			}
		}
	}
}
