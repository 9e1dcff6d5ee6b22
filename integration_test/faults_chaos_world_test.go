//go:build unix

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/testing/services"
	"github.com/millrace-go/watermill-outbox/queue"
)

// chaos is a crashWorld whose database may fail over, with a queue and a JetStream reader in addition.
type chaos struct {
	*crashWorld
	plan    chaosPlan
	rng     *rand.Rand // of the plan
	begun   time.Time
	room    string // a small file system for the data of Postgres; "" = none
	clock   string // a file with the offset of Postgres's clock; "" = the machine's clock
	proxy   *proxy
	primary *services.Postgres
	standby *services.Postgres // nil = this Postgres cannot have one
	pooler  *services.PgBouncer
	nats    *services.NATS
	inbound *jetStreamWorld

	live       sync.Mutex // guards fields that sample reads
	forwarding []*worker
	queueing   []*process
	reading    []*process

	enqueued int // only by load
	samples  []sample
	ahead    time.Duration                 // offset of the database's clock
	outage   atomic.Pointer[chan struct{}] // closed = the publishers' broker is up
	faults   map[string]*faulted

	told        sync.Mutex
	sent        map[string]sending // by UUID
	under       []stretch          // periods with faults
	unexplained []string
}

// sending is the last arrival of a message at the publishers' broker.
type sending struct {
	at     time.Time
	denied bool // the broker had reported an error
}

type stretch struct{ from, to time.Time }

func newChaos(t *testing.T, plan chaosPlan) *chaos {
	t.Helper()
	c := &chaos{
		plan: plan, rng: rand.New(rand.NewPCG(plan.seed, 0)), begun: time.Now(), faults: map[string]*faulted{},
		sent: map[string]sending{},
	}
	if os.Getenv("OUTBOX_CHAOS") != "" { // they need root, and other new processes would inherit them
		c.room, c.clock = ownFileSystem(t), ownClock(t)
	}
	c.crashWorld = &crashWorld{t: t}
	c.primary = c.startServer(func(settings services.Options) (*services.Postgres, error) {
		return services.StartPostgres(t.Context(), settings)
	})
	t.Cleanup(func() { // the current ones at that time
		require.NoError(t, c.primary.Close())
		if c.standby != nil {
			require.NoError(t, c.standby.Close())
		}
	})
	c.proxy = newProxy(t, c.primary.URL())
	c.follow()
	h := pgxHandle(t, "chaos", c.proxy.url, func(cfg *pgxpool.Config) { cfg.MaxConns = 10 })
	c.crashWorld = newCrashWorld(t, h, 60)
	c.broker.answers(c.answer)
	var err error
	c.pooler, err = services.StartPgBouncer(t.Context(), c.proxy.url, services.Options{})
	if errors.Is(err, services.ErrNotInstalled) && !services.InCI() {
		t.Skip("PgBouncer is not installed")
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.pooler.Close()) })
	c.crashWorld.pooler = c.pooler.URL()
	// Not in the name of a test: the first server of the process starts something that lives as long as any of them.
	c.nats, err = shared(func(ctx context.Context) (*services.NATS, error) {
		return services.StartNATS(ctx, services.Options{})
	})()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.nats.Close()) })
	h.exec(t, inboundLedger)
	c.inbound = newJetStreamWorldIn(t, h, c.nats.URL(), nil)
	watchClaims(t, h)

	for _, handle := range []string{"pgx", "sql-pq", "pgbouncer"} {
		c.forwarding = append(c.forwarding, c.start(c.worker(handle)))
	}
	for range 2 {
		c.queueing = append(c.queueing, c.startQueue())
		c.reading = append(c.reading, c.inbound.spawn(c.inbound.config()))
	}
	return c
}

func (c *chaos) worker(handle string) childConfig {
	return childConfig{Handle: handle, Handlers: true, LeaseTTL: 2 * time.Second, Forget: c.plan.forget}
}

func (c *chaos) startQueue() *process {
	return startQueueProcess(c.t, queueChild{URL: c.h.url, Dispatchers: 1, Concurrency: 8, LeaseTTL: time.Second})
}

// ownFileSystem mounts a small one, if the machine permits.
func ownFileSystem(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := mountSmall(dir); err != nil {
		t.Logf("no full-disk faults: %v", err)
		return ""
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, 0)) })
	reachable(t, dir)
	require.NoError(t, os.Chmod(dir, 0o777))
	return dir
}

// reachable gives the server, which runs as another user, access to a folder of the test.
func reachable(t testing.TB, dir string) {
	t.Helper()
	for ; dir != filepath.Clean(os.TempDir()) && dir != "/"; dir = filepath.Dir(dir) {
		require.NoError(t, os.Chmod(dir, 0o755))
	}
}

// ownClock creates the file by which libfaketime sets the clock, if it is installed.
func ownClock(t testing.TB) string {
	t.Helper()
	if faketime() == "" {
		t.Log("no clock faults: apt-get install libfaketime")
		return ""
	}
	file := filepath.Join(t.TempDir(), "ahead")
	require.NoError(t, os.WriteFile(file, []byte("+0"), 0o644))
	reachable(t, filepath.Dir(file))
	return file
}

func faketime() string {
	found, _ := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	if own := os.Getenv("OUTBOX_FAKETIME"); own != "" {
		found = []string{own}
	}
	if len(found) == 0 {
		return ""
	}
	return found[0]
}

// startServer starts a Postgres server on the file system and with the clock that may fail.
func (c *chaos) startServer(start func(services.Options) (*services.Postgres, error)) *services.Postgres {
	c.t.Helper()
	var server *services.Postgres
	c.inServers(func() (err error) {
		server, err = start(services.Options{PostgresSettings: []string{
			"max_wal_size=128MB", "min_wal_size=32MB", "wal_keep_size=64MB", "wal_retrieve_retry_interval=100ms",
			"shared_buffers=64MB", "wal_receiver_timeout=3s", "wal_sender_timeout=3s", "restart_after_crash=off", "fsync=off",
		}})
		if errors.Is(err, services.ErrNotInstalled) {
			c.t.Logf("no failover: %v", err)
			return nil
		}
		return err
	})
	return server
}

// inServers runs the start of a server.
func (c *chaos) inServers(start func() error) {
	c.t.Helper()
	set := map[string]string{}
	if c.room != "" {
		set["TMPDIR"] = c.room
	}
	if c.clock != "" {
		set["LD_PRELOAD"], set["FAKETIME_TIMESTAMP_FILE"] = faketime(), c.clock
		set["FAKETIME_CACHE_DURATION"], set["FAKETIME_DONT_FAKE_MONOTONIC"] = "1", "1"
	}
	for name, value := range set {
		old, had := os.LookupEnv(name)
		require.NoError(c.t, os.Setenv(name, value))
		defer func() {
			if os.Unsetenv(name); had {
				os.Setenv(name, old)
			}
		}()
	}
	require.NoError(c.t, start())
}

// follow gives the primary a replica; from then on it acknowledges no commit without one.
func (c *chaos) follow() {
	c.t.Helper()
	c.standby = c.startServer(func(settings services.Options) (*services.Postgres, error) {
		return c.primary.StartReplica(c.t.Context(), settings)
	})
	if c.standby == nil {
		return
	}
	h := newPgxHandle(c.t, c.primary.URL())
	defer h.pool.Close()
	h.exec(c.t, `alter system set synchronous_standby_names = '*'`)
	h.exec(c.t, `select pg_reload_conf()`)
	c.inSync(h)
}

// inSync waits until the replica has everything that was visible on the primary when it was called. A commit whose
// client stops waiting for the replica, as happens on a machine that stands still, is visible before the replica has
// it.
func (c *chaos) inSync(h handle) {
	c.t.Helper()
	begun, seen := time.Now(), value[string](c.t, h, `select pg_current_wal_lsn()::text`)
	eventually(c.t, func() bool {
		if time.Since(begun) > time.Second { // before clients stop waiting
			begun, seen = time.Now(), value[string](c.t, h, `select pg_current_wal_lsn()::text`)
		}
		return h.count(c.t, `select count(*) from pg_stat_replication
			where sync_state = 'sync' and state = 'streaming' and flush_lsn >= $1::pg_lsn`, seen) > 0
	}, "the replica is in sync")
}

// load writes at a steady rate to all of them until stop is called.
func (c *chaos) load() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	fed := c.source.feed(10 * time.Millisecond)
	store, err := queue.NewStore(c.h.db, quickStore(), nil)
	require.NoError(c.t, err)
	var loading sync.WaitGroup
	every := func(d time.Duration, do func()) {
		loading.Go(func() {
			tick := time.NewTicker(d)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					do()
				case <-ctx.Done():
					return
				}
			}
		})
	}
	topics := []string{"orders", "orders", "failing", "calls"}
	every(100*time.Millisecond, func() {
		all := make([]queue.Item, 5)
		for i := range all {
			topic := topics[(c.enqueued+i)%len(topics)]
			all[i] = queue.Item{ID: itemID(topic, c.enqueued+i), Topic: topic, Payload: []byte("payload")}
		}
		for { // without a reply, store them again under the same IDs
			within, done := context.WithTimeout(context.Background(), 5*time.Second)
			_, err := store.Enqueue(within, all...)
			done()
			if err == nil {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		c.enqueued += len(all)
	})
	every(c.plan.length/60+time.Second, c.sample)
	return sync.OnceFunc(func() { fed(); cancel(); loading.Wait() })
}

// answer is the answer of the publishers' broker, which is up or down, fails now and then, and reports messages that
// were sent twice although nothing had failed.
func (c *chaos) answer(_ *worker, m Copy, arrive func()) error {
	if away := c.outage.Load(); away != nil {
		select {
		case <-*away:
		default:
			return errors.New("unavailable")
		}
	}
	n := rand.IntN(200)
	if n < 2 {
		return errors.New("rejected")
	}
	c.record(m, n < 6)
	arrive()
	if n < 6 {
		return errors.New("rejected, but it has arrived")
	}
	return nil
}

// afterwards is how long after its end a fault may cause copies: leases expire, and calls time out.
const afterwards = 15 * time.Second

func (c *chaos) record(m Copy, denied bool) {
	c.told.Lock()
	defer c.told.Unlock()
	now := time.Now()
	if last, again := c.sent[m.UUID]; again && !last.denied {
		explained := false
		for _, f := range c.under {
			explained = explained || (f.to.IsZero() || f.to.Add(afterwards).After(last.at)) && f.from.Before(now)
		}
		if !explained {
			c.unexplained = append(c.unexplained, fmt.Sprintf("%s %s was sent %s after the first time, and nothing had failed",
				m.Topic, m.UUID, now.Sub(last.at)))
		}
	}
	c.sent[m.UUID] = sending{now, denied}
}

// works waits until each forwarder process has done some work, and so have the other processes.
func (c *chaos) works(when string) (took time.Duration) {
	c.t.Helper()
	begun := time.Now()
	if err := c.pooler.Crashed(); err != nil { // it does, at times, when a server's disk is full
		c.t.Logf("%s: %v; it is started again, as a service manager does", when, err)
		require.NoError(c.t, c.pooler.Restart(c.t.Context()))
	}
	c.h.pool.Reset()
	for _, p := range c.forwarding {
		committed, settled := p.timesAt("committed"), p.timesAt("settled")
		eventually(c.t, func() bool { return p.timesAt("committed") > committed+2 && p.timesAt("settled") > settled+2 },
			"%s: %s handles, publishes and settles", when, p.cfg.Name)
	}
	c.inbound.send(20, 30)
	done := func() int { return c.h.count(c.t, `select count(*) from applied`) }
	before := done()
	eventually(c.t, func() bool { return done() > before }, "%s: the queue works", when)
	return time.Since(begun)
}

// settles waits until no work is left.
func (c *chaos) settles() {
	c.t.Helper()
	if c.plan.forget {
		eventually(c.t, c.source.exhausted, "all orders acked")
		c.settle("at the end")
	} else {
		c.finish()
	}
	c.drained()
	c.inbound.await(c.inbound.settled)
	for _, p := range c.forwarding {
		p.shutDown()
	}
	for _, p := range c.queueing {
		p.end(c.t)
	}
}

// drained waits until the queue is empty. A long backlog may take its time, but the test fails if it stops shrinking.
func (c *chaos) drained() {
	c.t.Helper()
	const undone = `from inbox_queue where state = 'processing'`
	for left := math.MaxInt; ; {
		now := left
		if !eventuallyTrue(func() bool { now = c.h.count(c.t, `select count(*) `+undone); return now < left }) {
			c.t.Fatalf("%d messages of the queue are not done, none more within %s: %v", left, patience,
				column[string](c.t, c.h, `select format('%s attempts %s crashes %s due in %s locked for %s: %s', message_id,
					attempts, crashes, due_at - clock_timestamp(), locked_until - clock_timestamp(), last_error) `+undone+
					` order by id limit 20`))
		}
		if left = now; left == 0 {
			return
		}
	}
}
