package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
)

// testPool is a connection pool without a database. Those with the same name are one pool.
type testPool struct {
	drive.Pool
	name string
}

func (p testPool) Name() string { return p.name }
func (p testPool) ID() any      { return p.name }
func (p testPool) Exec(context.Context, string, ...any) (int64, error) {
	return 0, errors.New("not in this test")
}

// owner is a Scheduler with its owner, which puts each database to sleep as soon as the test allows it.
type owner struct {
	*Scheduler[*owned]
	t     *testing.T
	mu    sync.Mutex
	begun time.Time
	all   map[string]*owned
	pass  int      // number of passes
	lines []string // log lines

	targetsMu sync.Mutex
	targets   []string // "key@pool"
	closed    map[string]bool
}

// owned is a database. The fields are guarded by owner.mu.
type owned struct {
	*Database[*owned]
	polls   []time.Duration // start times of polls
	woken   []time.Duration
	removed bool
	work    bool          // polls find work
	fails   error         // duration of polls
	takes   time.Duration // error of polls
}

// run runs a test in a bubble. Polls of a pool are 1 s to 8 s apart.
func run(t *testing.T, polls int, targets string, test func(o *owner)) {
	synctest.Test(t, func(t *testing.T) {
		o := &owner{t: t, begun: time.Now(), all: map[string]*owned{}, closed: map[string]bool{}}
		o.targets = strings.Fields(targets)
		f, err := fleet.New(o.discover, fleet.Config{
			RefreshInterval: 5 * time.Second, Open: o.open,
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		o.Scheduler = New(Config[*owned]{
			Fleet: f, Logger: o, Mu: &o.mu, Polls: polls, PollInterval: time.Second, MaxPollInterval: 8 * time.Second,
			Concerns: func(n core.Notification) bool { return n.Outbox },
			Join: func(d *Database[*owned]) (*owned, error) {
				if strings.HasPrefix(d.Key, "bad") {
					return nil, errors.New("bad")
				}
				o.all[d.Key] = &owned{Database: d}
				return o.all[d.Key], nil
			},
			Poll: o.poll,
			Woken: func(_ context.Context, d *owned) {
				d.woken = append(d.woken, time.Since(o.begun))
			},
			Removed: func(d *owned) { d.removed = true },
			Pass: func(context.Context, time.Time) time.Duration {
				o.pass++
				return time.Hour
			},
		})
		ctx, end := context.WithCancel(t.Context())
		defer end()
		var running sync.WaitGroup
		running.Go(func() { _ = f.Run(ctx) })
		running.Go(func() { _ = o.Run(ctx) })
		synctest.Wait()
		test(o)
		o.Close()
		end()
		running.Wait()
	})
}

func (o *owner) discover(context.Context) (all []fleet.Target, err error) {
	o.targetsMu.Lock()
	defer o.targetsMu.Unlock()
	for _, t := range o.targets {
		all = append(all, fleet.Target{Key: t, DSN: t})
	}
	return all, nil
}

func (o *owner) open(_ context.Context, t fleet.Target) (*outbox.DB, func(), error) {
	_, pool, _ := strings.Cut(t.Key, "@")
	db, err := core.NewDB(testPool{name: pool}, core.Config{}, watermill.NopLogger{})
	return (*outbox.DB)(db), func() {
		o.targetsMu.Lock()
		defer o.targetsMu.Unlock()
		o.closed[t.Key] = true
	}, err
}

func (o *owner) poll(_ context.Context, list []*owned) (err error) {
	o.mu.Lock()
	var takes time.Duration
	for _, d := range list {
		d.polls = append(d.polls, time.Since(o.begun))
		takes = max(takes, d.takes)
		if d.fails != nil {
			err = d.fails
		}
	}
	o.mu.Unlock()
	time.Sleep(takes)
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range list {
		if d.work {
			o.Wake(d.Database)
		}
	}
	return err
}

// with calls fn with the lock.
func (o *owner) with(fn func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	fn()
}

// after waits for some time and returns the number of polls and wakes of a database.
func (o *owner) after(d time.Duration, key string) (polls, woken int) {
	time.Sleep(d)
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.all[key].polls), len(o.all[key].woken)
}

// until waits for a state of a database's pool.
func (o *owner) until(d *owned, state poolState) {
	for is := state - 1; is != state; o.with(func() { is = d.pool.state }) {
		time.Sleep(10 * time.Millisecond)
	}
}

func (o *owner) expect(what string, got, want any) {
	o.t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		o.t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func (o *owner) log(line string) {
	o.targetsMu.Lock()
	defer o.targetsMu.Unlock()
	o.lines = append(o.lines, line)
}

func (o *owner) Error(msg string, _ error, f watermill.LogFields) { o.log(fmt.Sprint(msg, f["db"])) }
func (o *owner) Info(msg string, _ watermill.LogFields)           { o.log(msg) }
func (o *owner) Debug(string, watermill.LogFields)                {}
func (o *owner) Trace(string, watermill.LogFields)                {}
func (o *owner) With(f watermill.LogFields) watermill.LoggerAdapter {
	return &withFields{o, f}
}

type withFields struct {
	*owner
	fields watermill.LogFields
}

func (w *withFields) Error(msg string, err error, f watermill.LogFields) {
	w.owner.Error(msg, err, w.fields.Add(f))
}

func (w *withFields) With(f watermill.LogFields) watermill.LoggerAdapter {
	return &withFields{w.owner, w.fields.Add(f)}
}

// TestPollsOfAPool: its databases are polled together, at growing intervals, and often again after one had work.
func TestPollsOfAPool(t *testing.T) {
	run(t, 4, "a@1 b@1 c@2", func(o *owner) {
		polls, _ := o.after(0, "a@1")
		o.expect("polls at the beginning", polls, 1)
		before, _ := o.after(time.Minute, "a@1")
		o.with(func() { o.expect("polls of one pool", o.all["a@1"].polls, o.all["b@1"].polls) })
		if before < 60/10 || before > 60/6+5 {
			t.Errorf("%d polls in a minute", before)
		}
		o.with(func() { o.all["b@1"].work = true })
		_, woken := o.after(10*time.Second, "b@1")
		o.expect("the database with work is woken", woken, 1)
		o.with(func() { o.all["b@1"].work = false })
		asleep, _ := o.after(time.Minute, "b@1")
		awake, woken := o.after(time.Minute, "b@1")
		o.expect("polls of an awake database", awake, asleep)
		o.expect("the database is woken once", woken, 1)
		o.with(func() { o.Sleep(o.all["b@1"].Database, time.Second) })
		again, _ := o.after(2*time.Second, "b@1")
		if again == awake {
			t.Error("the database is not polled after it went to sleep")
		}
		_, woken = o.after(0, "a@1")
		o.expect("a database without work is woken", woken, 0)
	})
}

// TestWakes: by a commit in this process, or at a time, and in neither case before SkipUntil.
func TestWakes(t *testing.T) {
	run(t, 4, "a@1 b@1", func(o *owner) {
		a, b := o.all["a@1"], o.all["b@1"]
		o.with(func() {
			o.WakeAt(b.Database, time.Now().Add(1500*time.Millisecond))
			b.SkipUntil = time.Now().Add(20 * time.Second)
			o.Sleep(b.Database, 0)
		})
		a.DB().Wake()
		b.DB().Wake()
		_, woken := o.after(0, a.Key)
		o.expect("woken by a commit", woken, 1)
		a.DB().Wake()
		_, woken = o.after(0, a.Key)
		o.expect("woken while awake", woken, 1)
		o.with(func() {
			o.WakeAt(a.Database, time.Now().Add(100*time.Millisecond))
			o.Sleep(a.Database, time.Hour)
		})
		_, woken = o.after(100*time.Millisecond-1, a.Key)
		o.expect("woken early", woken, 1)
		_, woken = o.after(1, a.Key)
		o.expect("woken when it is due", woken, 2)
		polls, woken := o.after(19*time.Second, b.Key)
		o.expect("woken while it is skipped", woken, 0)
		o.expect("polls while it is skipped", polls, 1)
		polls, woken = o.after(2*time.Second, b.Key)
		o.expect("woken afterwards", woken, 1)
		o.expect("polls before it is woken", polls, 2)
		o.with(func() {
			o.WakeAt(b.Database, time.Time{})
			b.SkipUntil = time.Now().Add(time.Hour)
			o.Sleep(b.Database, 0)
		})
		polls, _ = o.after(time.Minute, b.Key)
		o.with(func() { o.Poll(b.Database) })
		later, _ := o.after(0, b.Key)
		o.expect("polls on request", later, polls+1)
	})
}

// TestDueDuringAPoll: a database is woken when it is due, although others of its pool are being polled, or the pool
// waits for a slot.
func TestDueDuringAPoll(t *testing.T) {
	run(t, 1, "a@1 b@1 c@2", func(o *owner) {
		a, b, c := o.all["a@1"], o.all["b@1"], o.all["c@2"]
		due := func(when string) {
			o.with(func() {
				o.WakeAt(b.Database, time.Now().Add(100*time.Millisecond))
			})
			_, before := o.after(0, b.Key)
			_, early := o.after(100*time.Millisecond-1, b.Key)
			o.expect("woken early "+when, early, before)
			_, woken := o.after(1, b.Key)
			o.expect("woken "+when, woken, before+1)
			o.with(func() {
				o.WakeAt(b.Database, time.Time{})
				o.Sleep(b.Database, 0)
			})
		}
		o.with(func() { a.takes = 20 * time.Second })
		o.until(a, polling)
		due("while others are polled")
		o.until(a, scheduled)
		o.with(func() { a.takes, c.takes = 0, slowAfter-1 })
		o.until(c, polling)
		o.with(func() { o.Poll(a.Database) })
		o.until(a, waiting)
		due("while its pool waits")
	})
}

// TestADatabaseThatFailed is polled before it is woken for being due: a hung server is not tried again for each of its
// databases.
func TestADatabaseThatFailed(t *testing.T) {
	run(t, 4, "a@1 b@1", func(o *owner) {
		a, b := o.all["a@1"], o.all["b@1"]
		o.with(func() {
			a.fails = errors.New("down")
			o.WakeAt(a.Database, time.Now())
			a.SkipUntil = time.Now().Add(10 * time.Second)
			o.WakeAt(b.Database, time.Now().Add(20*time.Second))
		})
		_, woken := o.after(10*time.Minute, a.Key)
		o.expect("woken while polls fail", woken, 0)
		_, woken = o.after(0, b.Key)
		o.expect("a database that has not failed is woken when it is due", woken, 1)
		o.with(func() { a.fails = nil })
		_, woken = o.after(2*time.Minute, a.Key)
		o.expect("woken when polls work again", woken, 1)
	})
}

// TestCommitsOfADatabaseThatIsAwake do not each start a pass.
func TestCommitsOfADatabaseThatIsAwake(t *testing.T) {
	run(t, 4, "a@1", func(o *owner) {
		a := o.all["a@1"]
		a.DB().Wake()
		o.after(0, a.Key)
		var before int
		o.with(func() { before = o.pass })
		for range 10 {
			a.DB().Wake()
			synctest.Wait()
		}
		o.with(func() {
			if n := o.pass - before; n > 1 {
				t.Errorf("%d passes for ten commits", n)
			}
			o.Sleep(a.Database, time.Hour)
		})
		a.DB().Wake()
		_, woken := o.after(time.Second, a.Key)
		o.expect("woken by commits", woken, 2)
	})
}

// TestAPollOnRequestFollowsOneInFlight: the one in flight may have begun too early.
func TestAPollOnRequestFollowsOneInFlight(t *testing.T) {
	run(t, 4, "a@1", func(o *owner) {
		a := o.all["a@1"]
		o.with(func() { a.takes = 100 * time.Millisecond })
		for in, _ := o.after(0, a.Key); ; {
			if now, _ := o.after(10*time.Millisecond, a.Key); now > in {
				break
			}
		}
		o.with(func() { o.Poll(a.Database) })
		before, _ := o.after(0, a.Key)
		after, _ := o.after(100*time.Millisecond, a.Key)
		o.expect("polls", after, before+1)
	})
}

// TestAPoolThatFails is polled at growing intervals, whatever its databases do, and does not delay others.
func TestAPoolThatFails(t *testing.T) {
	run(t, 1, "a@1 b@1 c@2", func(o *owner) {
		a, b, c := o.all["a@1"], o.all["b@1"], o.all["c@2"]
		o.with(func() { a.fails, a.takes = errors.New("down"), 10*time.Second })
		o.after(10*time.Minute, a.Key)
		o.with(func() {
			if n := len(a.polls); n < 9 || n > 20 {
				t.Errorf("%d polls of the failing pool in ten minutes", n)
			}
			if n := len(c.polls); n < 60 {
				t.Errorf("%d polls of the other pool in ten minutes", n)
			}
			for i, at := range c.polls[1:] {
				if at-c.polls[i] > 11*time.Second {
					t.Errorf("a poll of the other pool comes after %s", at-c.polls[i])
				}
			}
		})
		o.until(a, scheduled)
		o.until(a, polling)
		o.with(func() { o.expect("slots in use by the failing pool", o.polls.taken, 0) })
		o.until(a, scheduled)
		before, _ := o.after(0, a.Key)
		o.with(func() { o.Sleep(b.Database, 0) }) // as if it had been awake
		after, _ := o.after(time.Second, a.Key)
		o.expect("polls of the failing pool when a database goes to sleep", after, before)
		o.with(func() { a.fails, a.takes = nil, 0 })
		o.after(2*time.Minute, a.Key)
		o.expect("the log", o.lines, []string{
			"polling a database failed: the database is skipped, for longer each timea@1 and 1 more with the same DSN",
			"polling a database works again",
		})
		before, _ = o.after(0, a.Key)
		if after, _ := o.after(time.Minute, a.Key); after < before+6 {
			t.Errorf("%d polls in a minute after the pool works again", after-before)
		}
	})
}

// TestSlowPolls free their slots for others, up to a limit.
func TestSlowPolls(t *testing.T) {
	var targets []string
	for i := range maxSlow + 3 {
		targets = append(targets, fmt.Sprintf("slow-%02d@slow-%02d", i, i))
	}
	run(t, 2, strings.Join(targets, " ")+" zz@zz", func(o *owner) {
		o.after(time.Minute, "zz@zz") // the first polls were quick
		o.with(func() {
			for key, d := range o.all {
				if key != "zz@zz" {
					d.takes = time.Hour
				}
			}
		})
		before, _ := o.after(30*time.Second, "zz@zz")
		polling := func() (n int) {
			o.with(func() {
				for _, d := range o.all {
					if d.pool.state == polling {
						n++
					}
				}
			})
			return n
		}
		o.expect("polls in flight", polling(), maxSlow+2)
		after, _ := o.after(30*time.Second, "zz@zz")
		o.expect("polls of others when no slot is left", after, before)
		o.after(time.Hour, "zz@zz")
		o.with(func() {
			for _, d := range o.all {
				d.takes = 0
			}
		})
		before, _ = o.after(time.Hour, "zz@zz")
		after, _ = o.after(time.Minute, "zz@zz")
		if after < before+6 {
			t.Errorf("%d polls in a minute after slots are free again", after-before)
		}
	})
}

// TestRemovedDatabases: handles are closed when everything that uses them has ended.
func TestRemovedDatabases(t *testing.T) {
	run(t, 4, "a@1 b@1 c@2", func(o *owner) {
		a, c := o.all["a@1"], o.all["c@2"]
		over := make(chan struct{})
		o.with(func() { o.Go(a.Database, func() { <-over }) })
		o.with(func() { c.takes = 30 * time.Second })
		o.after(10*time.Second, c.Key)
		o.targetsMu.Lock()
		o.targets = []string{"b@1", "d@2"}
		o.targetsMu.Unlock()
		o.after(7*time.Second, c.Key)
		closed := func() []string {
			o.targetsMu.Lock()
			defer o.targetsMu.Unlock()
			return slices.Sorted(maps.Keys(o.closed))
		}
		o.with(func() {
			o.expect("it has left", []bool{a.removed, a.Removed(), c.removed, a.Asleep()}, []bool{true, true, true, false})
			o.Sleep(a.Database, 0) // as its owner does when its work ends
			o.Poll(a.Database)
			o.expect("the database is asleep", a.Asleep(), false)
			o.expect("databases", o.Len(), 2)
			o.expect("the new database is polled", len(o.all["d@2"].polls) > 0, true)
		})
		o.expect("handles are closed", closed(), []string{})
		close(over)
		synctest.Wait()
		o.expect("handles are closed", closed(), []string{"a@1"})
		polls, _ := o.after(time.Minute, c.Key)
		o.expect("handles are closed", closed(), []string{"a@1", "c@2"})
		later, _ := o.after(time.Minute, c.Key)
		o.expect("polls of the removed database", later, polls)
		o.targetsMu.Lock()
		o.targets = []string{"b@1"}
		o.targetsMu.Unlock()
		o.after(7*time.Second, c.Key)
		o.with(func() { o.WakeAt(o.all["d@2"].Database, time.Now()) }) // as its owner does when its work ends
		_, woken := o.after(time.Second, "d@2")
		o.expect("woken after it was removed", woken, 0)
	})
}

// TestADatabaseThatCannotJoin is retried, and its handle is not kept.
func TestADatabaseThatCannotJoin(t *testing.T) {
	run(t, 4, "a@1 bad@1", func(o *owner) {
		o.after(10*time.Second, "a@1")
		o.with(func() { o.expect("databases", o.Len(), 1) })
	})
}

// TestDrain names failed databases, and ends with the scheduler.
func TestDrain(t *testing.T) {
	run(t, 4, "a@1 b@1", func(o *owner) {
		err := o.Drain(o.t.Context(), func(_ context.Context, d *owned) error {
			if d.Key == "b@1" {
				return errors.New("broken")
			}
			return nil
		})
		o.expect("the error", err, `database "b@1": broken`)
		o.Close()
		o.with(func() {
			o.expect("calls that wait get", o.Gone(), outbox.ErrClosed)
			o.Wake(o.all["a@1"].Database)
			o.expect("woken after the end", len(o.all["a@1"].woken), 0)
		})
		err = o.Drain(o.t.Context(), func(context.Context, *owned) error { return nil })
		o.expect("after the end", err, outbox.ErrClosed)
	})
}
