package queue

import (
	"testing"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// TestNoHandlerIsKnown: admin recognises messages without a handler by this text.
func TestNoHandlerIsKnown(t *testing.T) {
	if errNoHandler.Error() != sqltext.NoHandler {
		t.Errorf("%q is not %q", errNoHandler, sqltext.NoHandler)
	}
}
