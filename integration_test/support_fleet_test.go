package integration_test

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/forwarder"
)

// registry is a Discovery whose list the test changes.
type registry struct {
	mu      sync.Mutex
	targets map[string]fleet.Target
}

func newRegistry(targets ...fleet.Target) *registry {
	r := &registry{targets: map[string]fleet.Target{}}
	r.add(targets...)
	return r
}

func (r *registry) add(targets ...fleet.Target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range targets {
		r.targets[t.Key] = t
	}
}

func (r *registry) remove(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.targets, key)
}

func (r *registry) Discover(context.Context) (list []fleet.Target, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.targets {
		list = append(list, t)
	}
	return list, nil
}

// tenant is a target with a second handle outside the fleet, as another process would have.
type tenant struct {
	fleet.Target
	handle
}

// newTenants creates tables in schemas of one database, or in the search path if schemas is 0.
func newTenants(t testing.TB, name string, schemas int) (list []tenant) {
	t.Helper()
	dsn := newDatabase(t)
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	q := u.Query()
	q.Set("application_name", "fleet-"+t.Name())
	u.RawQuery = q.Encode()
	writer := pgxHandle(t, name, dsn, nil)
	for i := range max(schemas, 1) {
		tenant := tenant{Target: fleet.Target{Key: name, DSN: u.String()}}
		if schemas > 0 {
			tenant.Key = fmt.Sprintf("%s-%03d", name, i)
			tenant.Tables.Schema = fmt.Sprintf("s%03d", i)
			writer.exec(t, "CREATE SCHEMA "+tenant.Tables.Schema)
		}
		tenant.handle = writer.configured(t, outbox.DBConfig{Tables: tenant.Tables})
		list = append(list, tenant)
	}
	var migrating sync.WaitGroup
	slots := make(chan struct{}, 4)
	for _, tenant := range list {
		migrating.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if err := makeTables(t.Context(), tenant.db); err != nil {
				t.Error(err)
			}
		})
	}
	migrating.Wait()
	return list
}

func targetsOf(tenants ...tenant) (list []fleet.Target) {
	for _, t := range tenants {
		list = append(list, t.Target)
	}
	return list
}

// pendingIn counts unpublished messages.
func (t tenant) pendingIn(tb testing.TB) int {
	return t.count(tb, "SELECT count(*) FROM "+t.table("outbox")+" WHERE published_at IS NULL")
}

func (t tenant) table(name string) string {
	if t.Tables.Schema == "" {
		return name
	}
	return t.Tables.Schema + "." + name
}

// asleep reports whether the tenant has no live forwarder.
func (t tenant) asleep(tb testing.TB) bool {
	return t.count(tb, "SELECT count(*) FROM "+t.table("outbox_forwarders")+" WHERE expires_at > clock_timestamp()") == 0
}

// isPolled waits for two polls that begin from now on, with all forwarders asleep.
func (t tenant) isPolled(tb testing.TB) {
	tb.Helper()
	for range 2 {
		now := value[time.Time](tb, t.handle, "SELECT clock_timestamp()")
		eventually(tb, func() bool {
			return t.count(tb, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query_start > $1
				AND application_name LIKE 'fleet-%' AND (query LIKE '%pg_snapshot_xmin%' OR query LIKE '%pg_sequence_last_value%')`,
				now) > 0
		}, "%s is polled", t.Key)
	}
}

// runFleet runs a fleet until the test ends, and waits for its first discovery.
func runFleet(t testing.TB, d fleet.Discovery, cfg fleet.Config, logger watermill.LoggerAdapter) *fleet.Fleet {
	t.Helper()
	f, err := fleet.New(d, cfg, logger)
	require.NoError(t, err)
	runUntilTheEnd(t, f, f.Running(), f.Close)
	return f
}

func runUntilTheEnd(t testing.TB, r outbox.Runner, running <-chan struct{}, end func() error) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- r.Run(context.Background()) }()
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-running:
	case err := <-ended:
		ended <- nil
		t.Fatalf("%T does not run: %v", r, err)
	case <-time.After(patience):
		t.Fatalf("%T does not run", r)
	}
}

// quickGroup is a configuration with short waits.
func quickGroup() forwarder.GroupConfig {
	return forwarder.GroupConfig{
		Forwarder: quickConfig(), IdlePollInterval: 50 * time.Millisecond, IdleAfter: 200 * time.Millisecond,
	}
}

func runGroup(
	t testing.TB, f *fleet.Fleet, pub message.Publisher, cfg forwarder.GroupConfig, logger watermill.LoggerAdapter,
) *forwarder.Group {
	t.Helper()
	g, err := forwarder.NewGroup(f, pub, cfg, logger)
	require.NoError(t, err)
	runUntilTheEnd(t, g, g.Running(), g.Close)
	return g
}
