package integration_test

import (
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// newMessage makes a message with a fresh UUID.
func newMessage(payload string) *message.Message {
	return message.NewMessage(watermill.NewUUID(), message.Payload(payload))
}
