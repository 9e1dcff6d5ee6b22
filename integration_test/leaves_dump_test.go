package integration_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/schema"
)

// pendingLedger knows of each message since when it has certainly been pending, and until when.
type pendingLedger struct {
	mu    sync.Mutex
	since map[string]time.Time
	until map[string]time.Time
}

func (l *pendingLedger) wrote(uuids []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, u := range uuids {
		l.since[u] = time.Now()
	}
}

func (l *pendingLedger) willSettle(uuids []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, u := range uuids {
		l.until[u] = time.Now()
	}
}

// all lists the messages that were pending all the time between.
func (l *pendingLedger) all(from, to time.Time) (list []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for u, since := range l.since {
		if until, settled := l.until[u]; since.Before(from) && (!settled || until.After(to)) {
			list = append(list, u)
		}
	}
	return list
}

// pendingOf lists the messages that a dump has as pending.
func pendingOf(t testing.TB, dump string) map[string]bool {
	t.Helper()
	pending := map[string]bool{}
	copies := regexp.MustCompile(`(?m)^COPY public\.outbox_(?:p\d+|default) \((.*)\) FROM stdin;$`)
	for _, at := range copies.FindAllStringSubmatchIndex(dump, -1) {
		columns := strings.Split(dump[at[2]:at[3]], ", ")
		uuid, published := slices.Index(columns, "uuid"), slices.Index(columns, "published_at")
		require.GreaterOrEqual(t, min(uuid, published), 0, columns)
		rows, _, ended := strings.Cut(dump[at[1]+1:], "\\.\n")
		require.True(t, ended)
		for row := range strings.Lines(rows) {
			values := strings.Split(strings.TrimSuffix(row, "\n"), "\t")
			if values[published] == `\N` {
				pending[values[uuid]] = true
			}
		}
	}
	return pending
}

// TestEveryDumpHoldsWhatIsPending dumps the database again and again while it is written to, settled and rolled as fast
// as that goes. Each dump has all that was pending as long as it lasted, or fails and says so, because a leaf was
// dropped. The last one is restored.
func TestEveryDumpHoldsWhatIsPending(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newLeaves(t, 4000, 8000, 12000, 16000, 20000)
	program := pgDump(t, h)
	if program == "" {
		t.Log("no pg_dump for this server: its statements stand in for it")
	}
	ledger := &pendingLedger{since: map[string]time.Time{}, until: map[string]time.Time{}}
	busy := pgxHandle(t, "busy", h.url, func(cfg *pgxpool.Config) { cfg.MaxConns = 4 })
	ctx, stop := context.WithCancel(t.Context())
	var working sync.WaitGroup
	defer working.Wait()
	defer stop()
	for w := range 2 {
		working.Go(func() { // writes 30 at a time, and settles all but one of them long ago
			pace := time.NewTicker(50 * time.Millisecond) // no faster than leaves can be made between two dumps
			defer pace.Stop()
			for n := 0; ctx.Err() == nil; n++ {
				<-pace.C
				var uuids []string
				for i := range 30 {
					uuids = append(uuids, fmt.Sprintf("w%d-%d-%d", w, n, i))
				}
				_, err := busy.pool.Exec(t.Context(), `INSERT INTO outbox (uuid, topic, key, payload, created_at)
					SELECT u, 't', u, 'p', now() - interval '2 days' FROM unnest($1::text[]) u`, uuids)
				if !assert.NoError(t, err) {
					return
				}
				ledger.wrote(uuids)
				ledger.willSettle(uuids[1:])
				_, err = busy.pool.Exec(t.Context(), `UPDATE outbox SET published_at = now() - interval '2 days'
					WHERE uuid = ANY ($1::text[]) AND id > (SELECT max(id) - 1000 FROM outbox)`, uuids[1:])
				if !assert.NoError(t, err) {
					return
				}
			}
		})
	}
	var emptied, putBack, dropped atomic.Int64
	working.Go(func() {
		for ctx.Err() == nil {
			r, err := h.tryRoll(t)
			if !assert.NoError(t, err) {
				return
			}
			emptied.Add(int64(r.Emptied))
			putBack.Add(r.PutBack)
			dropped.Add(int64(r.Dropped))
		}
	})

	var last string
	var must []string
	dumps, refused := 0, 0
	for begun := time.Now(); time.Since(begun) < 15*time.Second || dumps < 5 || putBack.Load() == 0; {
		require.Less(t, time.Since(begun), 2*patience, "%d dumps, %d put back", dumps, putBack.Load())
		from := time.Now()
		dump, err := dumpAll(t.Context(), program, h)
		if err != nil {
			require.Regexp(t, `does not exist|could not open relation|cache lookup failed`, err.Error())
			refused++
			continue
		}
		dumps++
		pending := map[string]bool{}
		if program == "" {
			for u := range strings.Lines(dump) {
				pending[strings.TrimSpace(u)] = true
			}
		} else {
			pending = pendingOf(t, dump)
		}
		last, must = dump, ledger.all(from, time.Now())
		for _, u := range must {
			require.True(t, pending[u], "dump %d of %d pending messages has no %s", dumps, len(must), u)
		}
	}
	stop()
	working.Wait()
	t.Logf("%d dumps held all that was pending, in the last one %d messages; %d failed because a leaf was dropped; "+
		"%d leaves were emptied, %d messages put back, %d leaves dropped", dumps, len(must), refused, emptied.Load(),
		putBack.Load(), dropped.Load())
	require.NotEmpty(t, must)
	require.Positive(t, emptied.Load())
	if program == "" {
		return
	}
	restored := newPgxHandle(t, newDatabase(t))
	file := filepath.Join(t.TempDir(), "dump.sql")
	require.NoError(t, os.WriteFile(file, []byte(last), 0o600))
	out, err := exec.CommandContext(t.Context(), filepath.Join(filepath.Dir(program), "psql"), "--no-psqlrc", "--quiet",
		"-v", "ON_ERROR_STOP=1", "-f", file, restored.url).CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoError(t, schema.Check(t.Context(), restored.db))
	has := column[string](t, restored, `SELECT uuid FROM outbox WHERE published_at IS NULL`)
	require.Subset(t, has, must)
	require.Len(t, did(restored.roll(t, func(c *admin.RollConfig) { c.DryRun = true })), len(did(restored.roll(t))))
	restored.publish(t, "t", "k", "after the restore")
}

// dumpAll dumps a database as SQL.
func dumpAll(ctx context.Context, program string, h handle) (string, error) {
	if program == "" {
		return dumpLikePgDump(ctx, h)
	}
	var out, problems bytes.Buffer
	cmd := exec.CommandContext(ctx, program, "--no-owner", h.url)
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, problems.String())
	}
	return out.String(), nil
}
