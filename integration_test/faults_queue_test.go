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
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/queue"
)

type queueChild struct {
	URL                      string
	Dispatchers, Concurrency int
	LeaseTTL                 time.Duration
	Stale                    bool // for TestStoppedProcessChangesNothing
}

// runQueueChild dispatches until its input ends, at the latest when its parent does.
func runQueueChild(settings []byte) error {
	var cfg queueChild
	if err := json.Unmarshal(settings, &cfg); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	pool, err := pgxpool.New(ctx, fmt.Sprintf("%s&pool_max_conns=%d", cfg.URL, cfg.Dispatchers*(cfg.Concurrency+3)))
	if err != nil {
		return err
	}
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
	if err != nil {
		return err
	}
	if cfg.Stale {
		return runStaleChild(ctx, db)
	}
	apply := func(ctx context.Context, msg *queue.Message) error {
		tx, err := outbox.PgxTx(ctx)
		if err == nil {
			_, err = tx.Exec(ctx, `insert into applied (message_id, topic) values ($1, $2)`, msg.MessageID, msg.Topic)
		}
		time.Sleep(time.Duration(rand.IntN(10)) * time.Millisecond)
		if err == nil && msg.Topic == "failing" && msg.Attempts == 0 {
			err = errHandler
		}
		return err
	}
	handlers := map[string]queue.Handler{
		"orders": {Handle: apply}, "failing": {Handle: apply, Concurrency: 2},
		"calls": {Detached: true, Handle: func(ctx context.Context, msg *queue.Message) error {
			return outbox.InTx(ctx, db, func(ctx context.Context) error { return apply(ctx, msg) })
		}},
		"killers": {Detached: true, Handle: func(context.Context, *queue.Message) error {
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}},
		"victims": {Detached: true, Handle: func(ctx context.Context, msg *queue.Message) error {
			if msg.Attempts == 0 { // it waits for the killer to strike
				<-ctx.Done()
			}
			time.Sleep(200 * time.Millisecond) // so that suspects overlap, if that is possible
			return context.Cause(ctx)
		}},
	}
	var runners []outbox.Runner
	for range cfg.Dispatchers {
		store, err := queue.NewStore(db, quickStore(), nil)
		if err != nil {
			return err
		}
		d, err := queue.NewDispatcher(store, queue.DispatcherConfig{
			Handlers: handlers, Concurrency: cfg.Concurrency, LeaseTTL: cfg.LeaseTTL, PollInterval: 50 * time.Millisecond,
		}, nil)
		if err != nil {
			return err
		}
		runners = append(runners, d)
	}
	return outbox.Run(ctx, runners...)
}

func startQueueProcess(t testing.TB, cfg queueChild) *process {
	t.Helper()
	return startProcess(t, "queue", cfg)
}

// watchClaims makes the database record each claim of a row that already has an owner.
func watchClaims(t testing.TB, h handle) {
	t.Helper()
	for _, statement := range []string{
		`create table applied (message_id text not null, topic text not null)`,
		`create table stolen (message_id text not null)`,
		`create function watch() returns trigger language plpgsql as $$ begin
			if old.owner is not null and new.owner is not null and old.owner <> new.owner then
				insert into stolen values (new.message_id);
			end if;
			return new; end $$`,
		`create trigger watch before update on inbox_queue for each row execute function watch()`,
	} {
		h.exec(t, statement)
	}
}

// TestDispatchersUnderFire: 8 dispatchers in 4 processes that are killed, or stopped beyond their leases, at random.
// Each message is applied once, none has two owners at a time, and every charge belongs to a failure or a crash.
func TestDispatchersUnderFire(t *testing.T) {
	extended(t)
	parallel(t)
	messages, interval := 3000, 6*time.Second
	if os.Getenv("OUTBOX_LONG") != "" {
		messages, interval = 50_000, 2*time.Minute
	}
	h := newPgxHandle(t, newMigratedDatabase(t))
	watchClaims(t, h)
	s := storeOn(t, h, quickStore())
	cfg := queueChild{URL: h.url, Dispatchers: 2, Concurrency: 8, LeaseTTL: time.Second}
	processes := make([]*process, 4)
	for i := range processes {
		processes[i] = startQueueProcess(t, cfg)
	}
	stored := make(chan error, 1)
	go func() {
		topics, batch := []string{"orders", "orders", "failing", "calls"}, 50
		for n := 0; n < messages; n += batch {
			items := make([]queue.Item, batch)
			for i := range items {
				topic := topics[(n+i)%len(topics)]
				items[i] = queue.Item{ID: itemID(topic, n+i), Topic: topic, Payload: []byte("payload")}
			}
			if _, err := s.Enqueue(context.Background(), items...); err != nil {
				stored <- err
				return
			}
			time.Sleep(interval * time.Duration(batch) / time.Duration(messages))
		}
		stored <- nil
	}()
	kills, stops := 0, 0
	for fire := true; fire; {
		select {
		case err := <-stored:
			require.NoError(t, err)
			fire = false
		case <-time.After(time.Duration(300+rand.IntN(600)) * time.Millisecond):
			i := rand.IntN(len(processes))
			if rand.IntN(2) == 0 {
				kills++
				processes[i].kill()
				processes[i] = startQueueProcess(t, cfg)
				continue
			}
			stops++
			require.NoError(t, processes[i].cmd.Process.Signal(syscall.SIGSTOP))
			time.Sleep(1500 * time.Millisecond) // longer than its leases
			require.NoError(t, processes[i].cmd.Process.Signal(syscall.SIGCONT))
		}
	}
	h.reaches(t, 0, "all are done", "select count(*) from inbox_queue where state <> 'done'")
	for _, p := range processes {
		p.end(t)
	}
	t.Logf("%d kills, %d stops, %d leases ran out", kills, stops, h.count(t, "select sum(crashes) from inbox_queue"))
	assert.Equal(t, messages, h.count(t, "select count(*) from inbox_queue"))
	assert.Zero(t, h.count(t, "select count(*) from stolen"), "claimed twice")
	assert.Zero(t, h.count(t, `select count(*) from (select from applied where topic <> 'calls' group by message_id `+
		`having count(*) > 1) twice`))
	assert.Equal(t, messages, h.count(t, "select count(distinct message_id) from applied"))
	assert.Empty(t, column[string](t, h, `select message_id || ': ' || attempts || ', ' || crashes || ', ' || coalesce(last_error, '') from inbox_queue
		where attempts <> crashes and not (topic = 'failing' and attempts = crashes + 1)`), "charged for nothing")
	assert.Zero(t, h.count(t, "select count(*) from inbox_queue where topic = 'failing' and attempts = 0"),
		"a failure was not charged")
}

// TestKillerDiesAlone: a message that kills its process is dead after ten deaths, and messages handled next to it are
// done, with hardly a charge.
func TestKillerDiesAlone(t *testing.T) {
	extended(t)
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	const victims = 15 // more than one of them runs at a time, if more than one suspect may
	storeAll(t, s, append(items("killers", 1), items("victims", victims)...)...)
	killer := itemID("killers", 0)
	ends := 0
	for deadline := time.Now().Add(2 * patience); ; ends++ {
		p := startQueueProcess(t, queueChild{URL: h.url, Dispatchers: 1, Concurrency: 64, LeaseTTL: time.Minute})
		left := func() bool { return h.count(t, "select count(*) from inbox_queue where state = 'processing'") > 0 }
		for alive := true; alive && left(); {
			select {
			case <-p.gone:
				alive = false
			case <-time.After(20 * time.Millisecond):
			}
			require.False(t, time.Now().After(deadline), "%d ends: %s", ends, p.log)
		}
		if !left() {
			p.end(t)
			break
		}
		var exit *exec.ExitError
		require.True(t, errors.As(p.err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL, "%v: %s",
			p.err, p.log)
		// instead of waiting for the leases
		h.exec(t, "update inbox_queue set locked_until = now() - interval '1 s' where owner is not null")
	}
	state, attempts := stateOf(t, s, killer)
	assert.Equal(t, queue.Dead, state)
	assert.Equal(t, 10, attempts)
	assert.Equal(t, 10, ends)
	assert.Equal(t, victims, h.count(t, "select count(*) from inbox_queue where state = 'done' and topic = 'victims'"))
	assert.LessOrEqual(t, h.count(t, "select max(attempts) from inbox_queue where topic = 'victims'"), 1)
}

var staleVerbs = []string{"abandon", "ack", "fail", "release", "renew"}

// runStaleChild has one message in a handler and others claimed by hand until it loses its leases. Then it settles them
// all and reports the results.
func runStaleChild(ctx context.Context, db *outbox.DB) error {
	logger := watermill.NewStdLogger(true, false)
	store, err := queue.NewStore(db, queue.StoreConfig{}, logger)
	if err != nil {
		return err
	}
	begun, lost := make(chan struct{}), make(chan error, 1)
	d, err := queue.NewDispatcher(store, queue.DispatcherConfig{
		Concurrency: 1, LeaseTTL: 5 * time.Second, PollInterval: 50 * time.Millisecond,
		Handlers: map[string]queue.Handler{
			"calls": {Detached: true, Timeout: -1, Handle: func(ctx context.Context, _ *queue.Message) error {
				close(begun)
				<-ctx.Done()
				lost <- context.Cause(ctx)
				return nil // it completed nevertheless
			}},
		},
	}, logger)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	<-begun // it has no slot for more
	owner, left := queue.NewOwner(), len(staleVerbs)
	for left > 0 {
		msgs, err := store.Claim(ctx, queue.Claim{
			Owner: owner, LeaseTTL: time.Second, Limit: left, Topics: []string{"orders"},
		})
		if err != nil {
			return err
		}
		left -= len(msgs)
	}
	fmt.Println("it has them all")
	fmt.Println("handler:", <-lost)
	for _, verb := range staleVerbs {
		id, n := item("stale", verb).ID, 0
		switch verb {
		case "ack":
			n, err = store.Ack(ctx, owner, id)
		case "abandon":
			n, err = store.Abandon(ctx, owner, "", 0, id)
		case "fail":
			n, err = store.Fail(ctx, owner, "", id)
		case "release":
			n, err = store.Release(ctx, owner, id)
		case "renew":
			var ours []queue.ID
			ours, err = store.Renew(ctx, owner, time.Hour, id)
			n = len(ours)
		}
		fmt.Println(verb+":", n, err)
	}
	return errors.Join(d.Close(), <-ended)
}

// TestStoppedProcessChangesNothing: a process stands still until its leases expire and its messages have another owner.
// When it resumes, it changes none of them, in a handler or by hand, and gets errors.
func TestStoppedProcessChangesNothing(t *testing.T) {
	h := onPgx(t)
	store, owner := storeOn(t, h, queue.StoreConfig{Backoff: outbox.Backoff{Initial: -1}}), queue.NewOwner()
	storeAll(t, store, items("calls", 1)...)
	for _, verb := range staleVerbs {
		storeAll(t, store, item("stale", verb))
	}
	p := startQueueProcess(t, queueChild{URL: h.url, Dispatchers: 1, Concurrency: 1, Stale: true})
	eventually(t, func() bool {
		return strings.Contains(p.log.String(), "it has them all")
	}, "the process has them all: %s", p.log)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	var msgs []queue.Message
	eventually(t, func() bool {
		_, err := store.ReapExpired(t.Context())
		require.NoError(t, err)
		msgs = append(msgs, claimed(t, store, owner, 10)...)
		return len(msgs) == 1+len(staleVerbs)
	}, "they have another owner")
	rows := func() []string { return column[string](t, h, "select q::text from inbox_queue q order by message_id") }
	before := rows()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
	select {
	case <-p.gone:
	case <-time.After(patience):
		t.Fatalf("the process does not end: %s", p.log)
	}
	require.NoError(t, p.err, p.log)
	assert.Equal(t, before, rows())
	for _, verb := range staleVerbs {
		assert.Contains(t, p.log.String(), verb+": 0 <nil>\n")
	}
	assert.Contains(t, p.log.String(), "handler: "+queue.ErrLeaseLost.Error())
	assert.Contains(t, p.log.String(), "leases lost before the ack: nothing changed")
	settles(t, len(msgs))(store.Ack(t.Context(), owner, idsOf(msgs)...))
}
