//go:build unix

package integration_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
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
)

// runInbound is a member of the group. It ends when its input does.
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

// TestInboundOrderUnderKill: of two processes one is killed, within a batch too, again and again, while another one
// joins. Each message is handled once.
func TestInboundOrderUnderKill(t *testing.T) {
	extended(t)
	for name, batch := range map[string]bool{"one by one": false, "in batches": true} {
		t.Run(name, func(t *testing.T) {
			onEachBroker(t, 4, func(t *testing.T, w *inboundWorld) {
				w.send(rounds(4000, 50_000), 400)
				c := w.config()
				if c.Batch = batch; batch {
					c.Concurrency = 500
				}
				kills := rounds(3, 15)
				live := []*process{w.spawn(c), w.spawn(c)}
				for kill := 1; kill <= kills; kill++ {
					w.await(kill * w.settled / (kills + 2))
					live = append(live, w.spawn(c))
					live[0].kill()
					live = live[1:]
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

// TestInboundOrderUnderStop: a process is frozen until others have what it had, and then goes on where it was.
func TestInboundOrderUnderStop(t *testing.T) {
	extended(t)
	onEachBroker(t, 4, func(t *testing.T, w *inboundWorld) {
		w.send(rounds(3000, 30_000), 300)
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
			time.Sleep(100 * time.Millisecond) // what it had in hand goes on
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
