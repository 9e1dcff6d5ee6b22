package inbound

import (
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
)

// TestCodecSurvivesTheUsersCode: user code panics or returns nothing.
func TestCodecSurvivesTheUsersCode(t *testing.T) {
	c := Codec[int]{
		Key:       func(int) []byte { panic("no") },
		Unmarshal: func(int) (*message.Message, error) { panic("no") },
	}
	if _, err := c.KeyOf(1); err == nil {
		t.Error("a panic of Key is not an error")
	}
	if _, err := c.message(1); err == nil {
		t.Error("a panic of the Unmarshaler is not an error")
	}
	c.Unmarshal = func(int) (*message.Message, error) { return nil, nil }
	if _, err := c.message(1); !errors.Is(err, errNoMessage) {
		t.Errorf("no message: %v", err)
	}
}
