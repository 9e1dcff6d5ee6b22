package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/queue"
)

const historyAttempts = 6 // attempts after which a message is dead

// queueRow is a row of the queue in the model. It is unclaimed if owner is 0.
type queueRow struct {
	state    queue.State // "" = no row
	owner    int
	attempts int
	content  string // "" = never stored, so it cannot be claimed
	expires  bool   // may happen at any moment
}

// queueCall is a call about one message, and queueAnswer its result. A claim is in the history of each message that it
// returned.
type queueCall struct {
	verb    string
	id      string
	owner   int
	content string
	expires bool
}

type queueAnswer struct {
	changed  bool // the message changed, or it was done
	unknown  bool
	stored   queue.StoreResult
	state    queue.State
	attempts int
	content  string
}

// charged returns the row after a failed attempt.
func (r queueRow) charged() queueRow {
	r.owner, r.attempts = 0, r.attempts+1
	if r.attempts >= historyAttempts {
		r.state = queue.Dead
	}
	return r
}

// before returns the rows that may exist when a call begins: leases run out and messages expire.
func (r queueRow) before() []queueRow {
	rows := []queueRow{r}
	if r.owner != 0 {
		r = r.charged()
		rows = append(rows, r)
	}
	if r.state == queue.Processing && r.expires {
		r.state = queue.Dead
		rows = append(rows, r)
	}
	return rows
}

// after returns the rows that may exist after a call with this answer, or none if the answer is impossible.
func (r queueRow) after(c queueCall, a queueAnswer) []queueRow {
	ours := r.state == queue.Processing && r.owner == c.owner
	settled := func(to queueRow) []queueRow {
		switch {
		case a.changed != ours:
			return nil
		case !ours:
			return []queueRow{r}
		}
		to.owner = 0
		return []queueRow{to}
	}
	only := func(possible bool) []queueRow {
		if possible {
			return []queueRow{r}
		}
		return nil
	}
	to := r
	switch c.verb {
	case "enqueue":
		to.content, to.expires = c.content, c.expires
		switch a.stored {
		case queue.New:
			if to.state = queue.Processing; r.state == "" {
				return []queueRow{to}
			}
			return nil
		case queue.Updated:
			if to.state == queue.Seen {
				to.state = queue.Processing
			}
			if r.state != "" && r.state != queue.Done && r.owner == 0 {
				return []queueRow{to}
			}
			return nil
		case queue.AlreadyDone:
			return only(r.state == queue.Done)
		}
		return only(r.owner != 0) // busy
	case "look up":
		if to.state == "" {
			to.state = queue.Seen
		}
		if a.changed == (r.state == queue.Done) {
			return []queueRow{to}
		}
		return nil
	case "claim":
		if r.state != queue.Processing || r.owner != 0 || r.attempts != a.attempts || r.content == "" ||
			r.content != a.content {
			return nil
		}
		to.owner = c.owner
		return []queueRow{to}
	case "renew": // a locked one is skipped
		return only(ours || !a.changed)
	case "ack":
		to.state = queue.Done
		return settled(to)
	case "fail":
		to.state, to.attempts = queue.Dead, r.attempts+1
		return settled(to)
	case "abandon":
		return settled(r.charged())
	case "release":
		return settled(r)
	case "get":
		return only(r.state == a.state && r.attempts == a.attempts && (r.state == queue.Done || r.content == a.content))
	case "MarkProcessing", "MarkProcessed", "MarkDead":
		switch {
		case a.unknown != (r.state == ""):
			return nil
		case r.state == "" || r.state == queue.Done:
		case c.verb == "MarkDead":
			to.state, to.owner = queue.Dead, 0
		case c.verb == "MarkProcessed":
			to.state, to.owner = queue.Done, 0
		case r.state != queue.Processing:
			to = queueRow{state: queue.Processing, content: r.content}
		}
		return []queueRow{to}
	case "requeue":
		if to = (queueRow{state: queue.Processing, content: r.content}); !a.changed || r.state == queue.Dead &&
			r.content != "" {
			return []queueRow{map[bool]queueRow{true: to, false: r}[a.changed]}
		}
		return nil
	case "discard":
		if to.state = queue.Done; !a.changed || (r.state == queue.Dead || r.state == queue.Processing) && r.owner == 0 &&
			r.content != "" {
			return []queueRow{map[bool]queueRow{true: to, false: r}[a.changed]}
		}
		return nil
	}
	panic(c.verb)
}

// queueModel models one message, whose lease may expire and be reaped at any moment.
var queueModel = (&porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
		byID := map[string][]porcupine.Operation{}
		for _, op := range history {
			id := op.Input.(queueCall).id
			byID[id] = append(byID[id], op)
		}
		for _, part := range byID {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() []any { return []any{queueRow{}} },
	Step: func(state, input, output any) (next []any) {
		for _, row := range state.(queueRow).before() {
			for _, after := range row.after(input.(queueCall), output.(queueAnswer)) {
				next = append(next, after)
			}
		}
		return next
	},
}).ToModel()

// historian records who called what when, and the results.
type historian struct {
	began time.Time
	mu    sync.Mutex
	all   []porcupine.Operation
}

func (h *historian) call() int64 { return int64(time.Since(h.began)) }

func (h *historian) returned(call int64, c queueCall, a queueAnswer) {
	now := h.call()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, porcupine.Operation{ClientId: c.owner - 1, Input: c, Output: a, Call: call, Return: now})
}

// historyWorker makes random calls that a worker may make, also on messages that it has lost, and in transactions that
// commit late or roll back.
type historyWorker struct {
	*historian
	number   int
	db       *outbox.DB
	store    *queue.Store
	operator *admin.Admin
	owner    queue.Owner
	newest   func() string // a message to store, the same for some time
	recent   func() string // a message that another worker may be storing
	had      []string      // messages claimed lately
	stored   int
}

// maybeInTx runs fn, now and then in a transaction that ends late, and reports whether it was committed.
func (w *historyWorker) maybeInTx(ctx context.Context, fn func(ctx context.Context) error) (counts bool, err error) {
	chance := rand.IntN(10)
	if chance > 2 {
		return true, fn(ctx)
	}
	err = outbox.InTx(ctx, w.db, func(ctx context.Context) error {
		if err := fn(ctx); err != nil {
			return err
		}
		time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond) // time for others to interfere
		if chance == 0 {
			return errTakenBack
		}
		return nil
	})
	if errors.Is(err, errTakenBack) {
		return false, nil
	}
	return err == nil, err
}

func (w *historyWorker) step(ctx context.Context) error {
	ask := func(c queueCall, fn func(ctx context.Context, id queue.ID) (queueAnswer, error)) error {
		c.owner = w.number
		call := w.call()
		var answer queueAnswer
		counts, err := w.maybeInTx(ctx, func(ctx context.Context) (err error) {
			answer, err = fn(ctx, item("shop", c.id).ID)
			return err
		})
		if counts {
			w.returned(call, c, answer)
		}
		return err
	}
	settle := func(verb string, fn func(ctx context.Context, id queue.ID) (int, error)) error {
		if len(w.had) == 0 {
			return nil
		}
		return ask(queueCall{
			verb: verb, id: w.had[rand.IntN(len(w.had))],
		}, func(ctx context.Context, id queue.ID) (queueAnswer, error) {
			n, err := fn(ctx, id)
			return queueAnswer{changed: n == 1}, err
		})
	}
	mark := func(verb string, fn func(ctx context.Context, id queue.ID) error) error {
		return ask(queueCall{verb: verb, id: w.recent()}, func(ctx context.Context, id queue.ID) (queueAnswer, error) {
			err := fn(ctx, id)
			unknown := errors.Is(err, queue.ErrNotFound)
			if unknown {
				err = nil
			}
			return queueAnswer{unknown: unknown}, err
		})
	}
	operate := func(
		verb string, act func(context.Context, admin.Action) (admin.Result, error), states ...admin.State,
	) error {
		call, id := w.call(), w.recent()
		r, err := act(ctx, admin.Action{
			Filter: admin.Filter{In: admin.Queue, States: states, IDs: []string{"shop:" + id}}, Reason: "why",
		})
		w.returned(call, queueCall{verb: verb, id: id, owner: w.number}, queueAnswer{changed: r.Touched == 1})
		return err
	}
	switch n := rand.IntN(29); {
	case n < 5:
		w.stored++
		it := item("shop", w.newest())
		it.Payload = fmt.Appendf(nil, "%d-%d", w.number, w.stored)
		if rand.IntN(10) == 0 {
			it.ExpiresAt = time.Now().Add(5 * time.Millisecond)
		}
		c := queueCall{verb: "enqueue", id: it.MessageID, content: string(it.Payload), expires: !it.ExpiresAt.IsZero()}
		return ask(c, func(ctx context.Context, id queue.ID) (queueAnswer, error) {
			stored, err := w.store.Enqueue(ctx, it)
			if err != nil {
				return queueAnswer{}, err
			}
			return queueAnswer{stored: stored[0].Result}, nil
		})
	case n < 11:
		call := w.call()
		var msgs []queue.Message
		counts, err := w.maybeInTx(ctx, func(ctx context.Context) (err error) {
			msgs, err = w.store.Claim(ctx, queue.Claim{Owner: w.owner, LeaseTTL: time.Second, Limit: 2})
			return err
		})
		for _, msg := range msgs {
			if !counts {
				break
			}
			w.returned(call, queueCall{verb: "claim", id: msg.MessageID, owner: w.number},
				queueAnswer{attempts: msg.Attempts, content: string(msg.Payload)})
			w.had = append(w.had[max(0, len(w.had)-3):], msg.MessageID)
		}
		return err
	case n < 13:
		return settle("ack", func(ctx context.Context, id queue.ID) (int, error) { return w.store.Ack(ctx, w.owner, id) })
	case n < 15:
		return settle("abandon", func(ctx context.Context, id queue.ID) (int, error) {
			return w.store.Abandon(ctx, w.owner, "", 0, id)
		})
	case n < 16:
		return settle("fail", func(ctx context.Context, id queue.ID) (int, error) {
			return w.store.Fail(ctx, w.owner, "", id)
		})
	case n < 18:
		return settle("release", func(ctx context.Context, id queue.ID) (int, error) {
			return w.store.Release(ctx, w.owner, id)
		})
	case n < 19:
		return settle("renew", func(ctx context.Context, id queue.ID) (int, error) {
			ours, err := w.store.Renew(ctx, w.owner, time.Second, id)
			return len(ours), err
		})
	case n < 20:
		_, err := w.maybeInTx(ctx, func(ctx context.Context) error {
			_, err := w.store.ReapExpired(ctx)
			return err
		})
		return err
	case n < 22:
		return ask(queueCall{verb: "look up", id: w.recent()}, func(ctx context.Context, id queue.ID) (queueAnswer, error) {
			done, err := w.store.AlreadyProcessed(ctx, id, nil)
			return queueAnswer{changed: done}, err
		})
	case n < 23:
		return mark("MarkProcessing", w.store.MarkProcessing)
	case n < 24:
		return mark("MarkDead", func(ctx context.Context, id queue.ID) error { return w.store.MarkDead(ctx, id, "why") })
	case n < 25 && rand.IntN(2) == 0:
		return mark("MarkProcessed", w.store.MarkProcessed)
	case n < 26:
		return operate("requeue", w.operator.Requeue)
	case n < 27 && rand.IntN(2) == 0:
		return operate("discard", w.operator.Discard, admin.Dead, admin.Failing, admin.Delayed, admin.Ready)
	}
	id := w.recent()
	if len(w.had) > 0 {
		id = w.had[len(w.had)-1]
	}
	return ask(queueCall{verb: "get", id: id}, func(ctx context.Context, id queue.ID) (queueAnswer, error) {
		msg, err := w.store.Get(ctx, id)
		if errors.Is(err, queue.ErrNotFound) {
			return queueAnswer{}, nil
		}
		return queueAnswer{state: msg.State, attempts: msg.Attempts, content: string(msg.Payload)}, err
	})
}

// TestHistoryOfAQueue: several owners, operators and senders work on the same messages concurrently. Some order of the
// calls, each at one moment between its beginning and its end, must explain all results, with the content that was
// stored last. Calls in transactions that are rolled back have no such moment. In the end all unfinished messages can
// be claimed.
func TestHistoryOfAQueue(t *testing.T) {
	extended(t)
	h := onPgx(t)
	shortLeases(t, h)
	steps := 200
	if long {
		steps = 20_000
	}
	seen := &historian{began: time.Now()}
	var asked atomic.Int64
	newest := func() string { return fmt.Sprintf("%04d", asked.Add(1)/6) }
	recent := func() string { return fmt.Sprintf("%04d", max(0, asked.Load()/6+1-rand.Int64N(3))) }
	store := storeOn(t, h, queue.StoreConfig{MaxAttempts: historyAttempts, Backoff: outbox.Backoff{Initial: -1}})
	var group errgroup.Group
	const workers = 6
	for i := range workers {
		w := &historyWorker{
			historian: seen, number: i + 1, newest: newest, recent: recent, owner: queue.NewOwner(), db: h.db, store: store,
			operator: newAdmin(t, h),
		}
		group.Go(func() error {
			for range steps {
				if err := w.step(t.Context()); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
	claimTheRest(t, h, store, seen, workers+1)
	explained := 0
	for _, part := range queueModel.Partition(seen.all) {
		switch result := porcupine.CheckOperationsTimeout(queueModel, part, patience); result {
		case porcupine.Ok:
			explained++
		case porcupine.Illegal:
			t.Fatalf("%s: %s", result, describeHistory(part))
		case porcupine.Unknown:
			t.Logf("found neither an order of %d calls within %s nor a proof that none exists", len(part), patience)
		}
	}
	require.Positive(t, explained, "messages whose calls have an order that the model allows")
	verbs := map[string]int{}
	for _, op := range seen.all {
		c, a := op.Input.(queueCall), op.Output.(queueAnswer)
		if c.verb == "enqueue" {
			c.verb += " " + a.stored.String()
		}
		verbs[c.verb]++
	}
	t.Logf("%d calls of %d messages, %d leases ran out: %v", len(seen.all), explained,
		h.count(t, "select sum(crashes) from inbox_queue"), verbs)
}

// claimTheRest claims all unfinished messages once existing leases have expired, and checks the other rows.
func claimTheRest(t *testing.T, h handle, store *queue.Store, seen *historian, number int) {
	t.Helper()
	h.exec(t, "drop trigger short on inbox_queue")
	h.exec(t, "update inbox_queue set locked_until = clock_timestamp() - interval '1 second' where owner is not null")
	owner := queue.NewOwner()
	eventually(t, func() bool {
		_, err := store.ReapExpired(t.Context())
		require.NoError(t, err)
		call := seen.call()
		for _, msg := range claimed(t, store, owner, 100) {
			seen.returned(call, queueCall{verb: "claim", id: msg.MessageID, owner: number},
				queueAnswer{attempts: msg.Attempts, content: string(msg.Payload)})
		}
		return h.count(t, "select count(*) from inbox_queue where state = 'processing' and topic <> '' "+
			"and owner is distinct from $1", owner.String()) == 0
	}, "all unfinished messages can be claimed")
	for _, id := range column[string](t, h, "select message_id from inbox_queue") {
		call := seen.call()
		msg := got(t, store, item("shop", id).ID)
		seen.returned(call, queueCall{verb: "get", id: id, owner: number}, queueAnswer{
			state: msg.State, attempts: msg.Attempts, content: string(msg.Payload),
		})
	}
}

func describeHistory(part []porcupine.Operation) string {
	var b strings.Builder
	slices.SortFunc(part, func(x, y porcupine.Operation) int { return int(x.Call - y.Call) })
	for _, op := range part {
		fmt.Fprintf(&b, "\n%12s to %12s  %+v  %+v", time.Duration(op.Call), time.Duration(op.Return), op.Input, op.Output)
	}
	return b.String()
}

// shortLeases makes the database end all leases after some milliseconds, whatever LeaseTTL is.
func shortLeases(t testing.TB, h handle) {
	t.Helper()
	h.exec(t, `create function short() returns trigger language plpgsql as $$ begin
		new.locked_until := least(new.locked_until, clock_timestamp() + interval '5 milliseconds'); return new; end $$`)
	h.exec(t, `create trigger short before update on inbox_queue for each row execute function short()`)
}
