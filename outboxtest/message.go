package outboxtest

import (
	"encoding/json"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
)

// Message is a message with its topic.
type Message struct {
	Topic string
	*message.Message
}

// row is a row of the outbox.
type row struct {
	uuid, topic, key, metadata string
	payload                    []byte
}

// message returns what a forwarder would publish.
func (r row) message(t testing.TB) Message {
	t.Helper()
	msg := message.NewMessage(r.uuid, r.payload)
	if err := json.Unmarshal([]byte(r.metadata), &msg.Metadata); err != nil {
		t.Fatalf("outboxtest: metadata of message %q: %v", r.uuid, err)
	}
	if r.key != "" && msg.Metadata.Get(outbox.MetadataKey) == "" {
		msg.Metadata.Set(outbox.MetadataKey, r.key)
	}
	return Message{r.topic, msg}
}
