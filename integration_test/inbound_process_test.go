//go:build unix

package integration_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

// runInbound is a member of the group that ends with its input.
func runInbound(settings []byte) error {
	var c inboundConfig
	if err := json.Unmarshal(settings, &c); err != nil {
		return err
	}
	cfg, err := pgxpool.ParseConfig(c.URL)
	if err != nil {
		return err
	}
	cfg.MaxConns = 20
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
	if err != nil {
		return err
	}
	h := handle{name: "child", url: c.URL, db: db, pool: pool}
	begun := time.Now()
	handler := func(msg *message.Message, key string) error {
		if strings.HasSuffix(key, "07") && time.Since(begun) < c.FailFor {
			return errors.New("fails")
		}
		return work(msg, key)
	}
	if c.FailUntilMended {
		handler = failUntilMended(h, func(key string) bool { return strings.HasSuffix(key, "07") })
	}
	s, err := startInbound(h, c, handler, watermill.NewStdLogger(false, false))
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	s.close()
	return err
}

func (w *inboundWorld) spawn(c inboundConfig) *process {
	w.t.Helper()
	c.observers = nil
	return startProcess(w.t, "inbound", c)
}

// TestInboundOrderUnderKill: one of two processes is killed again and again, also within a batch, while another one
// joins. Each message is handled once.
func TestInboundOrderUnderKill(t *testing.T) {
	extended(t)
	for name, batch := range map[string]bool{"one by one": false, "in batches": true} {
		t.Run(name, func(t *testing.T) {
			onEachBroker(t, 4, func(t *testing.T, w *inboundWorld) {
				n := rounds(2000, 50_000)
				c := w.config()
				if c.Batch = batch; batch {
					n, c.Concurrency = 2*n, 500
				}
				w.send(n, 400)
				kills := rounds(2, 15)
				live := []*process{w.spawn(c), w.spawn(c)}
				for kill := 1; kill <= kills; kill++ {
					w.await(kill * w.settled / (kills + 2))
					live = append(live, w.spawn(c))
					live[0].kill()
					live = live[1:]
					assert.Less(t, w.handled(), w.settled, "all were handled before kill %d: the test has shown nothing", kill)
				}
				w.await(w.settled)
				w.verify()
				if batch {
					assert.Equal(t, w.settled, w.published())
				}
			})
		})
	}
}

// TestInboundOrderUnderStop: a process is frozen until others have its partitions, and then resumes.
func TestInboundOrderUnderStop(t *testing.T) {
	extended(t)
	onEachBroker(t, 4, func(t *testing.T, w *inboundWorld) {
		w.send(rounds(1500, 30_000), 300)
		frozen := w.spawn(w.config())
		stops := rounds(1, 4)
		for stop := 1; stop <= stops; stop++ {
			w.await(stop * w.settled / (stops + 3))
			require.NoError(t, frozen.cmd.Process.Signal(syscall.SIGSTOP))
			thawed := sync.OnceFunc(func() { _ = frozen.cmd.Process.Signal(syscall.SIGCONT) })
			t.Cleanup(thawed)
			other := w.spawn(w.config())
			before := w.handled()
			eventually(t, func() bool { return w.handled() > before+50 }, "another process takes over")
			thawed()
			time.Sleep(100 * time.Millisecond) // messages in its handlers continue
			frozen = other
		}
		w.await(w.settled)
		w.verify()
	})
}

// failUntilMended fails for some keys until the table mended has a row.
func failUntilMended(h handle, fails func(key string) bool) func(*message.Message, string) error {
	return func(msg *message.Message, key string) error {
		if !fails(key) {
			return nil
		}
		var mended bool
		if err := h.pool.QueryRow(msg.Context(), `select exists (select from mended)`).Scan(&mended); err != nil {
			return err
		}
		if !mended {
			return errors.New("fails")
		}
		return nil
	}
}

// TestInboundCampaign combines all faults: up to four processes on eight partitions, one of which is killed, frozen
// beyond its session, ended or started each second; one key in a hundred fails until all others are handled; and the
// broker is killed now and then. It runs once for each assignment strategy.
func TestInboundCampaign(t *testing.T) {
	extended(t)
	if !long {
		t.Skip("takes minutes: set OUTBOX_LONG=1")
	}
	for _, strategy := range []string{"range", "sticky", "cooperative"} {
		t.Run(strategy, func(t *testing.T) { inboundCampaign(t, strategy) })
	}
}

func inboundCampaign(t *testing.T, strategy string) {
	server, err := services.StartKafka(t.Context(), services.Options{QuickStart: true})
	needsKafka(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	w := newInboundWorldOn(t, server, 8)
	w.send(40_000, 1000)
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
	require.Equal(t, w.settled-failing, w.handled(), "messages of failing keys")
	w.h.exec(t, `insert into mended values (now())`)
	w.spawn(c)
	w.await(w.settled)
	w.verify()
	t.Logf("%s: %d messages, each handled once and in order, in %s, %d of them of keys that failed", strategy,
		w.settled, did, failing)
}

// TestJetStreamCampaign combines all faults: up to three processes, one of which is killed, frozen for longer than it
// owns the consumer, ended or started each second; one key in a hundred fails in the first seconds of each process; and
// the server is restarted now and then.
func TestJetStreamCampaign(t *testing.T) {
	extended(t)
	if !long {
		t.Skip("takes minutes: set OUTBOX_LONG=1")
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

// campaignPatience limits the time in which no message is handled, all but the first campaignRest of it without faults.
// Whenever a process joins or leaves, the whole group stops, and then rereads everything from its failing keys on.
const (
	campaignPatience = 5 * time.Minute
	campaignRest     = 30 * time.Second
)

// campaign lets processes come and go until this many messages are handled, and restarts the broker every half minute.
// It returns a list of its actions.
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
			t.Fatalf("%d of %d messages are handled, no more within %s", done, until, campaignPatience)
		}
		if time.Sleep(time.Second); time.Since(progress) > campaignRest && len(live) > 0 {
			continue
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
	}
	return fmt.Sprintf("%s: %d processes killed, %d frozen, %d ended, %d restarts of the broker",
		time.Since(begun).Round(time.Second), killed, frozen, ended, restarts)
}
