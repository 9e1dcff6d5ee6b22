package integration_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/middleware"
)

func poison(*message.Message) ([]*message.Message, error) { return nil, outbox.Poison(errHandler) }

// JetStream and an inbox behind the dead-letter topic keep one of several letters with the same UUID.
func TestEachDeathHasALetterOfItsOwn(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		msg := newMessage("payload")
		letters := func() []string {
			return column[string](t, h, "select uuid from outbox where topic = 'dead_letters' "+
				"and metadata->>'uuid_poisoned' = $1 order by id", msg.UUID)
		}
		die := func(service, consumer string) {
			t.Helper()
			before := len(letters())
			_, err := chain(poison, stack(t, h, middleware.StackConfig{
				Service: service, Inbox: middleware.InboxConfig{Consumer: consumer},
			})...)(msg.Copy())
			require.NoError(t, err)
			require.Len(t, letters(), before+1)
		}
		die("shop", "first")
		die("shop", "second")
		die("bank", "first")
		for range 2 {
			require.True(t, revived(t, h, "shop/first", msg.UUID))
			die("shop", "first")
		}
		all := letters()
		slices.Sort(all)
		assert.Len(t, slices.Compact(all), 5)
		assert.NotContains(t, all, msg.UUID)
	})
}

// A letter that is written twice, because the ack of its message was lost and there is no inbox to remember, is known
// as one.
func TestTheSameDeathHasTheSameLetter(t *testing.T) {
	h := onPgx(t)
	outcomes, err := middleware.Outcomes(h.db, middleware.OutcomesConfig{Service: "shop"}, nil)
	require.NoError(t, err)
	msg := newMessage("")
	for range 2 {
		_, err := chain(poison, outcomes)(msg.Copy())
		require.NoError(t, err)
	}
	assert.Equal(t, 2, outboxed(t, h))
	assert.Equal(t, 1, h.count(t, "select count(distinct uuid) from outbox"))

	for range 2 {
		_, err := chain(poison, outcomes)(message.NewMessage("", nil))
		require.NoError(t, err)
	}
	assert.Equal(t, 3, h.count(t, "select count(distinct uuid) from outbox"), "messages without a UUID are not the same")
}

// TestALetterOfAMessageWithoutUUID has one that follows from where the broker has the message: redeliveries write the
// same letter, and other partitions, offsets and topics another.
func TestALetterOfAMessageWithoutUUID(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	mws := stack(t, h, middleware.StackConfig{})
	places := []core.Consumed{{Topic: "a", Position: "0/1"}, {Topic: "a", Position: "0/2"}, {Topic: "a", Position: "1/1"},
		{Topic: "b", Position: "0/1"}}
	for range 3 {
		for _, at := range places {
			msg := message.NewMessage("", []byte("same"))
			msg.SetContext(core.WithConsumed(t.Context(), at))
			_, err := chain(poison, mws...)(msg)
			require.NoError(t, err)
		}
	}
	assert.Equal(t, []string{"3", "3", "3", "3"},
		column[string](t, h, "select count(*)::text from outbox group by uuid"))
}

func TestDeadLetterAlwaysFits(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	h := newPgxHandle(t, newMigratedDatabase(t))
	mws := stack(t, h, middleware.StackConfig{})
	for name, metadata := range map[string]message.Metadata{
		"at the limit":                  {"a": strings.Repeat("x", limit-len(`{"a":""}`))},
		"one byte below":                {"a": strings.Repeat("x", limit-len(`{"a":""}`)-1)},
		"room for one note":             {"a": strings.Repeat("x", limit-len(`{"a":""}`)-60)},
		"room for all but the error":    {"a": strings.Repeat("x", limit-len(`{"a":""}`)-300)},
		"larger than the outbox allows": {"a": strings.Repeat("x", limit), "b": "kept"},
		"escaped to six times its size": {"a": strings.Repeat("\x01", limit/2)},
		"more by what replaces a NUL":   {"a": strings.Repeat("\x00", limit-100)},
		"refused by the outbox":         {"Outbox-Key": "k", "outboxgeneration": "1", "aggregate_type": "order"},
		"a dead letter's own":           {"reason_poisoned": strings.Repeat("x", limit-100)},
	} {
		msg := newMessage(name)
		msg.Metadata = metadata
		handler := func(*message.Message) ([]*message.Message, error) {
			return nil, outbox.Poison(fmt.Errorf("%s", strings.Repeat("<", 2000)))
		}
		_, err := chain(handler, mws...)(msg)
		require.NoError(t, err, name)
		var letter map[string]string
		stored := value[string](t, h, "select metadata::text from outbox where payload = $1::bytea", []byte(name))
		require.NoError(t, json.Unmarshal([]byte(stored), &letter))
		if sent, err := json.Marshal(metadata); err == nil && len(sent) <= limit && metadata["a"] != "" {
			assert.Equal(t, strings.ReplaceAll(metadata["a"], "\x00", "\uFFFD") == letter["a"], true,
				"%s: the message's own metadata are cut", name)
		}
		switch name {
		case "room for one note":
			assert.Equal(t, msg.UUID, letter[middleware.MetadataUUID], name)
		case "room for all but the error", "larger than the outbox allows", "a dead letter's own":
			assert.Equal(t, msg.UUID+" shop", letter[middleware.MetadataUUID]+" "+letter[middleware.MetadataService], name)
			assert.Contains(t, letter[middleware.MetadataReason], "poison message", name)
		}
		if name == "larger than the outbox allows" {
			assert.Equal(t, "kept", letter["b"])
			assert.Greater(t, len(letter["a"]), limit/10)
		}
	}
}
