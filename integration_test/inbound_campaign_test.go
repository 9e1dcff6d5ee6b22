//go:build unix

package integration_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/services"
)

// TestInboundCampaign is everything at once: up to four processes on eight partitions, of which one is killed, frozen
// past its session, ended or started each second, one key of a hundred fails until all others are handled,
// and the broker is killed now and then. It is for each way in which partitions are assigned.
func TestInboundCampaign(t *testing.T) {
	extended(t)
	if !long {
		t.Skip("it takes minutes: OUTBOX_LONG=1")
	}
	for _, strategy := range []string{"range", "sticky", "cooperative"} {
		t.Run(strategy, func(t *testing.T) { inboundCampaign(t, strategy) })
	}
}

func inboundCampaign(t *testing.T, strategy string) {
	server, err := services.StartKafka(t.Context(), services.Options{QuickStart: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	if server.Fake() {
		t.Skip("the fake broker does not restart")
	}
	w := newInboundWorldOn(t, server, 8)
	w.send(100_000, 1000)
	c := w.config()
	c.Strategy, c.FailUntilMended, c.MaxAhead = strategy, true, 100_000 // no partition pauses
	w.h.exec(t, `create table mended (at timestamptz)`)
	failing := 0
	for key, n := range w.sent {
		if strings.HasSuffix(key, "07") {
			failing += n
		}
	}
	did := w.campaign(c, 4, w.settled-failing, func() {
		require.NoError(t, server.Kill())
		require.NoError(t, server.Restart(t.Context()))
	})
	require.Equal(t, w.settled-failing, w.handled(), "of keys that fail")
	w.h.exec(t, `insert into mended values (now())`)
	w.spawn(c)
	w.await(w.settled)
	w.verify()
	t.Logf("%s: %d messages, each handled once and in order, in %s, %d of them of keys that failed", strategy,
		w.settled, did, failing)
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

// campaignPatience is for how long nothing may be handled. Each process that joins or leaves stops all of a group.
const campaignPatience = 5 * time.Minute

// campaign has processes come and go until so many messages are handled, and restarts the broker each half of a minute.
// It returns what it did.
func (w *inboundWorld) campaign(c inboundConfig, processes, until int, restart func()) string {
	t := w.t
	t.Helper()
	var live []*process
	begun, frozen, killed, ended, restarts := time.Now(), 0, 0, 0, 0
	lastRestart := begun
	done, progress := 0, begun
	for done < until {
		if n := w.handled(); n > done {
			done, progress = n, time.Now()
		}
		if time.Since(progress) > campaignPatience {
			t.Fatalf("%d of %d messages are handled, and no more for %s", done, until, campaignPatience)
		}
		if len(live) < 2 || len(live) < processes && rand.IntN(2) == 0 {
			live = append(live, w.spawn(c))
		} else {
			i := rand.IntN(len(live))
			victim := live[i]
			switch rand.IntN(4) {
			case 0:
				killed++
				victim.kill()
				live = append(live[:i], live[i+1:]...)
			case 1:
				frozen++
				require.NoError(t, victim.cmd.Process.Signal(syscall.SIGSTOP))
				time.AfterFunc(8*time.Second, func() { _ = victim.cmd.Process.Signal(syscall.SIGCONT) })
			case 2:
				ended++
				require.NoError(t, victim.input.Close())
				live = append(live[:i], live[i+1:]...)
			}
		}
		if time.Since(lastRestart) > 30*time.Second {
			restarts++
			restart()
			lastRestart = time.Now()
		}
		time.Sleep(time.Second)
	}
	return fmt.Sprintf("%s: %d processes killed, %d frozen, %d ended, %d restarts of the broker",
		time.Since(begun).Round(time.Second), killed, frozen, ended, restarts)
}
