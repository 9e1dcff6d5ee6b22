package outboxtest

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/memory"
)

// NewDB makes a handle on a database in memory, empty and with all tables. Its name is "memory". Each call makes a
// database of its own, which is safe for concurrent use. When the test is over, all that is still done with it fails.
func NewDB(t testing.TB) *outbox.DB {
	t.Helper()
	pool := memory.New()
	t.Cleanup(pool.Close)
	// There is no other process to notify.
	db, err := core.NewDB(pool, core.Config{DisableNotify: true}, nil)
	if err != nil {
		t.Fatalf("outboxtest.NewDB: %v", err)
	}
	return (*outbox.DB)(db)
}

// Message is a message with its topic.
type Message struct {
	Topic string
	*message.Message
}

// Written returns the messages that the transaction in ctx has written to the outbox so far, in order, without those
// that a nested InTx has undone. It works with handles of NewDB; without such a transaction it ends the test.
func Written(t testing.TB, ctx context.Context) []Message {
	t.Helper()
	native, err := core.Native(ctx)
	if err != nil {
		t.Fatalf("outboxtest.Written: %v", err)
	}
	tx, ok := native.(*memory.Tx)
	if !ok {
		t.Fatal("outboxtest.Written: the transaction is one of a real database: use Drain after its commit, " +
			"or a handle of NewDB")
	}
	return messages(t, tx.Written())
}

func messages(t testing.TB, written []memory.Outboxed) []Message {
	t.Helper()
	list := make([]Message, len(written))
	for i, o := range written {
		list[i] = newMessage(t, o)
	}
	return list
}

// newMessage makes of a row what a forwarder would publish.
func newMessage(t testing.TB, o memory.Outboxed) Message {
	t.Helper()
	msg := message.NewMessage(o.UUID, o.Payload)
	if err := json.Unmarshal([]byte(o.Metadata), &msg.Metadata); err != nil {
		t.Fatalf("outboxtest: metadata of message %q: %v", o.UUID, err)
	}
	if o.Key != "" && msg.Metadata.Get(outbox.MetadataKey) == "" {
		msg.Metadata.Set(outbox.MetadataKey, o.Key)
	}
	return Message{o.Topic, msg}
}
