package queue

import (
	"testing"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// TestNoHandlerIsKnown: admin tells by the text which messages wait for a handler.
func TestNoHandlerIsKnown(t *testing.T) {
	if errNoHandler.Error() != sqltext.NoHandler {
		t.Errorf("%q is not %q", errNoHandler, sqltext.NoHandler)
	}
}
