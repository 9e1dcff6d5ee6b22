//go:build unix

package integration_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/leaves"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// TestLeavesAtVolume has processes forward messages with order, blocked keys and delays, and others roll, as fast as
// that goes, and all are killed again and again, while an operator requeues and discards what is dead. A ledger that
// outlives them counts. The long variant goes on for 500,000 messages; OUTBOX_LEAVES_REPORT names a file for what it
// counted.
func TestLeavesAtVolume(t *testing.T) {
	extended(t)
	t.Parallel()
	noLeaks(t)
	v := &volume{t: t, h: newPgxHandle(t, newOrderDatabase(t)), ledger: newVolumeLedger(),
		goal: rounds(10_000, 500_000), leaf: int64(rounds(2000, 20_000)), begun: time.Now()}
	intoLeaves(t, v.h, v.leaf, 2*v.leaf, 3*v.leaf, 4*v.leaf, 5*v.leaf)
	v.listen()
	ctx, stop := context.WithCancel(context.Background())
	var working sync.WaitGroup
	for range 3 {
		working.Go(func() { v.keepKilling(ctx, leavesChild{}, rounds(40, 400)) })
	}
	working.Go(func() { v.keepKilling(ctx, leavesChild{Roll: true, Leaf: v.leaf}, 20) })
	working.Go(func() { v.operate(ctx) })
	t.Cleanup(func() {
		stop()
		working.Wait()
		v.close()
	})
	var writing sync.WaitGroup
	for i := range volumeWriters {
		writing.Go(func() { v.write(i) })
	}
	writing.Wait()
	written := time.Now()
	last := v.ledger.outstanding()
	for progress := time.Now(); v.busy(); {
		if n := v.ledger.outstanding(); n < last {
			last, progress = n, time.Now()
		}
		if time.Since(progress) > patience {
			lost, such := v.ledger.missing()
			t.Fatalf("%d messages never arrive, such as %v; pending: %v", lost, such, column[string](t, v.h,
				`SELECT format('%s %s %s', key, convert_from(payload, 'UTF8'), last_error) FROM outbox
				WHERE published_at IS NULL ORDER BY id LIMIT 10`))
		}
		time.Sleep(20 * time.Millisecond)
	}
	stop()
	working.Wait()
	v.close()
	report := v.report(time.Since(written))
	t.Log("\n" + report)
	if file := os.Getenv("OUTBOX_LEAVES_REPORT"); file != "" {
		require.NoError(t, os.WriteFile(file, []byte(report), 0o644))
	}
}

const (
	volumeWriters = 8
	volumeKeys    = 100   // of each writer
	volumeAhead   = 5_000 // messages that wait; then the writers do
)

type volume struct {
	t      *testing.T
	h      handle
	ledger *volumeLedger
	goal   int
	leaf   int64
	begun  time.Time

	told   *os.File // the processes' end of the pipe
	closed func()

	scarce atomic.Bool // there are few leaves ahead

	mu     sync.Mutex
	killed [2]int // forwarders, and those that roll
}

// busy says whether there is something to wait for.
func (v *volume) busy() bool {
	v.ledger.mu.Lock()
	rolled := v.ledger.rolls[1] > 0 && v.ledger.rolls[4] > 0
	v.ledger.mu.Unlock()
	return v.ledger.outstanding() > 0 || v.h.count(v.t, pendingIn) > 0 || !rolled
}

// listen reads what all processes tell, in one order.
func (v *volume) listen() {
	read, write, err := os.Pipe()
	require.NoError(v.t, err)
	v.told = write
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(read); lines.Scan(); {
			v.ledger.read(lines.Text())
		}
	}()
	v.closed = sync.OnceFunc(func() {
		_ = write.Close()
		<-ended
		_ = read.Close()
	})
}

// close waits for what the processes have told before their ends.
func (v *volume) close() { v.closed() }

// keepKilling runs one process after another and kills each soon after it has done so many steps at most.
func (v *volume) keepKilling(ctx context.Context, c leavesChild, most int) {
	c.URL = v.h.url
	spec, err := json.Marshal(c)
	if !assert.NoError(v.t, err) {
		return
	}
	for ctx.Err() == nil {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), leavesChildEnv+"="+string(spec))
		cmd.ExtraFiles = []*os.File{v.told}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		log, done := &logTail{}, &steps{left: 1 + rand.IntN(most), done: make(chan struct{})}
		cmd.Stdout, cmd.Stderr = done, log
		alive, err := cmd.StdinPipe()
		if !assert.NoError(v.t, errors.Join(err, cmd.Start())) {
			return
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case err := <-ended:
			assert.Fail(v.t, "a process ended by itself", "%v: %s", err, log)
			_ = alive.Close()
			return
		case <-done.done:
			time.Sleep(rand.N(300 * time.Millisecond))
		case <-ctx.Done():
		}
		_ = cmd.Process.Kill()
		<-ended
		_ = alive.Close()
		v.mu.Lock()
		v.killed[map[bool]int{true: 1}[c.Roll]]++
		v.mu.Unlock()
	}
}

// steps counts the lines of a process, one for each step.
type steps struct {
	left int
	done chan struct{}
}

func (s *steps) Write(p []byte) (int, error) {
	n := bytes.Count(p, []byte("\n"))
	if s.left > 0 && s.left <= n {
		close(s.done)
	}
	s.left -= n
	return len(p), nil
}

// write commits transactions of its own keys until there are enough messages; some are rolled back.
func (v *volume) write(writer int) {
	next := map[string]int{}
	for v.ledger.total() < v.goal {
		for began := time.Now(); v.ledger.outstanding() > volumeAhead || v.scarce.Load(); time.Sleep(5 * time.Millisecond) {
			if time.Since(began) > patience {
				assert.Fail(v.t, "nothing goes on", "%d messages wait; few leaves: %v", v.ledger.outstanding(), v.scarce.Load())
				return
			}
		}
		counts := map[string]int{}
		var keys, payloads []string
		var due []*time.Time
		for range 1 + rand.IntN(60) {
			key, kind := fmt.Sprintf("w%d-%d", writer, rand.IntN(volumeKeys)), kindPlain
			var at *time.Time
			switch rand.IntN(300) {
			case 0:
				kind = kindFails
			case 1, 2:
				kind = kindDelayed
				t := time.Now().Add(rand.N(3 * time.Second)).Truncate(time.Microsecond)
				at = &t
			}
			name := volumeName(kind, key)
			counts[name]++
			payload := kind + " " + strconv.Itoa(next[name]+counts[name])
			if at != nil {
				payload += " " + strconv.FormatInt(at.UnixMicro(), 10)
			}
			keys, payloads, due = append(keys, key), append(payloads, payload), append(due, at)
		}
		abort := rand.IntN(12) == 0
		if abort {
			for i := range payloads {
				payloads[i] = ghost
			}
		}
		err := pgx.BeginFunc(context.Background(), v.h.pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(context.Background(), `INSERT INTO outbox (uuid, topic, key, payload, metadata, due_at)
				SELECT gen_random_uuid(), 'orders', k, convert_to(p, 'UTF8'), jsonb_build_object('`+outbox.MetadataKey+`', k), d
				FROM unnest($1::text[], $2::text[], $3::timestamptz[]) WITH ORDINALITY t (k, p, d, n) ORDER BY n`,
				keys, payloads, due)
			if rand.IntN(10) == 0 {
				time.Sleep(rand.N(100 * time.Millisecond))
			}
			if abort {
				return errors.Join(err, errAborted)
			}
			return err
		})
		if abort {
			assert.ErrorIs(v.t, err, errAborted)
			continue
		}
		if !assert.NoError(v.t, err) {
			return
		}
		for name, n := range counts {
			next[name] += n
			v.ledger.commit(name, next[name])
		}
	}
}

// operate requeues what is dead, or discards it. It has the writers wait when no leaf is ahead: they fill one in less
// time than a roll may take here.
func (v *volume) operate(ctx context.Context) {
	a, err := admin.New(v.h.db, admin.Config{Actor: "operator"}, nil)
	if !assert.NoError(v.t, err) {
		return
	}
	for ctx.Err() == nil {
		var requeued, discarded []string
		rows, err := v.h.pool.Query(ctx, `SELECT id::text, key || ' ' || convert_from(payload, 'UTF8') FROM outbox
			WHERE dead_at >= '-infinity' AND published_at IS NULL`)
		if err == nil {
			var id, text string
			_, err = pgx.ForEachRow(rows, []any{&id, &text}, func() error {
				words := strings.Fields(text)
				v.ledger.mu.Lock()
				v.ledger.blocked++
				v.ledger.mu.Unlock()
				if rand.IntN(2) == 0 {
					requeued = append(requeued, id)
					return nil
				}
				n, err := strconv.Atoi(words[2])
				v.ledger.discard(volumeName(words[1], words[0]), n)
				discarded = append(discarded, id)
				return err
			})
		}
		if len(requeued) > 0 && err == nil {
			_, err = a.Requeue(ctx, admin.Act{Filter: admin.Filter{IDs: requeued}})
		}
		if len(discarded) > 0 && err == nil {
			_, err = a.Discard(ctx, admin.Act{Filter: admin.Filter{IDs: discarded}, Reason: "test"})
		}
		var set leaves.Set
		if err == nil {
			set, err = leaves.Read(ctx, (*core.DB)(v.h.db), sqltext.Tables{})
		}
		if ctx.Err() == nil {
			assert.NoError(v.t, err)
			v.scarce.Store(set.Ahead() == 0)
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// report is a table of what became of all messages, and fails the test unless there are noughts where there must be.
func (v *volume) report(rest time.Duration) string {
	l := v.ledger
	l.unknown()
	lost, such := l.missing()
	assert.Zero(v.t, lost, "lost: %v", such)
	assert.Zero(v.t, l.invented, "invented: %v", l.wrong)
	assert.Zero(v.t, l.disorder, "out of order: %v", l.wrong)
	assert.Zero(v.t, l.early, "before they were due: %v", l.wrong)
	assert.GreaterOrEqual(v.t, l.committed, v.goal)
	assert.Positive(v.t, l.rolls[1], "leaves emptied")
	assert.Positive(v.t, l.rolls[4], "messages put back")
	assert.Positive(v.t, l.blocked, "keys blocked")
	assert.Positive(v.t, min(v.killed[0], v.killed[1]), "processes killed")
	var b strings.Builder
	release := strings.Fields(value[string](v.t, v.h, `SELECT version()`))[1]
	fmt.Fprintf(&b, "PostgreSQL %s, %s, and all settled %s after the last commit\n\n", release,
		time.Since(v.begun).Round(time.Second), rest.Round(100*time.Millisecond))
	for _, row := range []struct {
		what string
		n    int
	}{
		{"messages committed", l.committed}, {"published", l.arrived}, {"discarded by the operator", l.discarded},
		{"lost", lost}, {"invented", l.invented}, {"out of order", l.disorder}, {"before they were due", l.early},
		{"copies", l.copies}, {"times that a key was blocked by a dead one", l.blocked},
		{"forwarders killed", v.killed[0]}, {"rolling processes killed", v.killed[1]},
		{"leaves made", l.rolls[0]}, {"leaves emptied", l.rolls[1]}, {"leaves dropped", l.rolls[2]},
		{"messages removed with a leaf", l.rolls[3]}, {"messages put back", l.rolls[4]},
		{"messages deleted by row", l.rolls[5]},
	} {
		fmt.Fprintf(&b, "%-44s %8d\n", row.what, row.n)
	}
	return b.String()
}
