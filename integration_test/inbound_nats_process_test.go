//go:build unix

package integration_test

import (
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/services"
)

// TestJetStreamOrderUnderKill: the owner of the consumer is killed, again and again, and a standby takes over.
func TestJetStreamOrderUnderKill(t *testing.T) {
	extended(t)
	t.Parallel()
	w := newJetStreamWorld(t, natsServer(t).URL())
	w.send(rounds(3000, 30_000), 300)
	owner := w.spawn(w.config())
	kills := rounds(2, 10)
	for kill := 1; kill <= kills; kill++ {
		w.await(kill * w.settled / (kills + 2))
		standby := w.spawn(w.config())
		w.await(w.handled() + 50)
		owner.kill()
		owner = standby
	}
	w.await(w.settled)
	w.verify()
}

// TestJetStreamOrderUnderStop: the owner is frozen until a standby has taken over, and then goes on where it was.
func TestJetStreamOrderUnderStop(t *testing.T) {
	extended(t)
	t.Parallel()
	w := newJetStreamWorld(t, natsServer(t).URL())
	w.send(rounds(3000, 30_000), 300)
	owner := w.spawn(w.config())
	stops := rounds(2, 6)
	for stop := 1; stop <= stops; stop++ {
		w.await(stop * w.settled / (stops + 3))
		require.NoError(t, owner.cmd.Process.Signal(syscall.SIGSTOP))
		thawed := sync.OnceFunc(func() { _ = owner.cmd.Process.Signal(syscall.SIGCONT) })
		t.Cleanup(thawed)
		other := w.spawn(w.config())
		before := w.handled()
		eventually(t, func() bool { return w.handled() > before+50 }, "another process takes over")
		thawed()
		time.Sleep(100 * time.Millisecond) // what it had in hand goes on
		owner.kill()
		owner = other
	}
	w.await(w.settled)
	w.verify()
}

// TestJetStreamCampaign is everything at once: up to three processes, of which one is killed, frozen for longer than it
// owns the consumer, ended or started each second, one key of a hundred fails in the first seconds of each process, and
// the server is restarted now and then.
func TestJetStreamCampaign(t *testing.T) {
	extended(t)
	if !long {
		t.Skip("it takes minutes: OUTBOX_LONG=1")
	}
	server, err := services.StartNATS(t.Context(), services.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	w := newJetStreamWorld(t, server.URL())
	w.send(30_000, 1000)
	c := w.config()
	c.FailFor = 3 * time.Second
	did := w.campaign(c, 3, w.settled, func() {
		require.NoError(t, server.Stop())
		require.NoError(t, server.Restart(t.Context()))
	})
	w.verify()
	t.Logf("JetStream: %d messages, each handled once and in order, in %s", w.settled, did)
}
