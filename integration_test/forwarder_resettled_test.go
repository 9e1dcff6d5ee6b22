package integration_test

import (
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// TestSettledAgainAfterReplay: the answer to a settling was lost, an operator has the messages sent again, and then it
// is repeated. It must not settle what nobody has sent yet.
func TestSettledAgainAfterReplay(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	for name, n := range map[string]int{"one by one": 3, "as a range": 100} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := newMigratedDatabase(t)
			h, gate := newStatementGate(t, url)
			defer gate.releaseAll()
			held := gate.holdSettling()
			w := startForwarder(t, h, quickConfig())
			w.publish(t, "x", "", numbered("", 1, n)...)
			w.arrives(t, numbered("", 1, n)...)
			gate.arrives(t, "settling", held...)
			other := newPgxHandle(t, url)
			eventually(t, func() bool { return len(w.all()) == n }, "all are published")
			other.exec(t, "update outbox set published_at = now()") // as the settling did whose answer was lost
			replayed, err := newAdmin(t, other).Replay(t.Context(), admin.Act{
				Filter: admin.Filter{Topic: "x"}, Reason: "no answer",
			})
			require.NoError(t, err)
			require.EqualValues(t, n, replayed.Touched)
			gate.release(held...)
			w.wait(t, "all are sent again", func() bool { return len(w.all()) >= 2*n })
			eventually(t, func() bool { return other.count(t, "select count(*) from outbox where published_at is null") == 0 },
				"and settled")
		})
	}
}

// TestFailedAgainAfterRequeue: the same with the failure of a message that was dead by then. It keeps its place in the
// order of its key.
func TestFailedAgainAfterRequeue(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	url := newMigratedDatabase(t)
	h, gate := newStatementGate(t, url)
	defer gate.releaseAll()
	cfg := quickConfig()
	cfg.Classify = func(error) forwarder.Verdict { return forwarder.Permanent }
	held := gate.hold(sqltext.SettleFailed, 0)
	w := startForwarderOn(t, h, cfg, func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "1" && msg.Metadata[outbox.MetadataGeneration] == "" {
			return errRefused
		}
		return nil
	})
	w.publish(t, "x", "K", "1", "2")
	gate.arrives(t, "settling", held)
	other := newPgxHandle(t, url)
	other.exec(t,
		"update outbox set attempts = 1, dead_at = now(), due_at = now() where id = (select min(id) from outbox)")
	requeued, err := newAdmin(t, other).Requeue(t.Context(), admin.Act{
		Filter: admin.Filter{Topic: "x", States: []admin.State{admin.Dead}}, Reason: "no answer",
	})
	require.NoError(t, err)
	require.EqualValues(t, 1, requeued.Touched)
	gate.release(held)
	w.arrives(t, "1", "2")
	require.True(t, slices.IsSorted(w.payloads("K")), "%v", w.payloads("K"))
}
