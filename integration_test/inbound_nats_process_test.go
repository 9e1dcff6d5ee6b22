//go:build unix

package integration_test

import (
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestJetStreamOrderUnderKill: the owner of the consumer is killed, again and again, and a standby takes over.
func TestJetStreamOrderUnderKill(t *testing.T) {
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
