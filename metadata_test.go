package outbox_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
)

func TestSetAggregateReplacesAKeyThatWasCopied(t *testing.T) {
	consumed := message.NewMessage("1", nil)
	outbox.SetKey(consumed, "order/1")
	copied := consumed.Copy()
	outbox.SetAggregate(copied, "invoice", "2")
	if _, ok := copied.Metadata[outbox.MetadataKey]; ok {
		t.Error("the copy has the key of the original")
	}
	if key, err := outbox.AggregateKey("", copied); key != "invoice/2" || err != nil {
		t.Error(key, err)
	}
	if consumed.Metadata.Get(outbox.MetadataKey) != "order/1" {
		t.Error("the original lost its key")
	}
	outbox.SetKey(copied, "own")
	if copied.Metadata.Get(outbox.MetadataKey) != "own" {
		t.Error("SetKey after SetAggregate has no effect")
	}
}

func TestSetEvent(t *testing.T) {
	msg := message.NewMessage("1", nil)
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600))
	outbox.SetEvent(msg, "OrderPlaced", 2, at)
	for key, want := range map[string]string{
		outbox.MetadataEventType: "OrderPlaced", outbox.MetadataEventVersion: "2",
		outbox.MetadataOccurredAt: "2026-01-02T02:04:05.000000006Z",
	} {
		if got := msg.Metadata.Get(key); got != want {
			t.Errorf("%s is %q, not %q", key, got, want)
		}
	}
	for _, version := range []int{0, -1} {
		outbox.SetEvent(msg, "OrderPlaced", 2, at)
		outbox.SetEvent(msg, "OrderPlaced", version, at)
		if got, ok := msg.Metadata[outbox.MetadataEventVersion]; ok {
			t.Errorf("version %d is recorded as %q", version, got)
		}
	}
}
