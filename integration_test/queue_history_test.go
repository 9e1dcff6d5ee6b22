package integration_test

import (
	"context"
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
	"github.com/millrace-go/watermill-outbox/queue"
)

const historyAttempts = 6 // after which a message is dead

// queueRow is a row of the queue in the model. Nobody has it if owner is 0.
type queueRow struct {
	state    queue.State // "" = there is none
	owner    int
	attempts int
}

// queueCall is what somebody asked of one message, and queueAnswer what it was told. A claim is in the history of the messages that it
// brought.
type queueCall struct {
	verb  string
	id    string
	owner int
}

type queueAnswer struct {
	changed  bool // the message was the owner's
	stored   queue.StoreResult
	state    queue.State
	attempts int
}

// charged is the row after a failed attempt.
func (r queueRow) charged() queueRow {
	r.owner, r.attempts = 0, r.attempts+1
	if r.attempts >= historyAttempts {
		r.state = queue.Dead
	}
	return r
}

// after returns the rows that there may be after a call with this answer; none if there can be no such answer.
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
	switch c.verb {
	case "enqueue":
		switch a.stored {
		case queue.New:
			if r.state == "" {
				return []queueRow{{state: queue.Processing}}
			}
			return nil
		case queue.Updated:
			return only(r.state != "" && r.state != queue.Done && r.owner == 0)
		case queue.AlreadyDone:
			return only(r.state == queue.Done)
		}
		return only(r.state != "" && r.state != queue.Done) // busy: somebody has it, or is changing it
	case "claim":
		if r.state != queue.Processing || r.owner != 0 || r.attempts != a.attempts {
			return nil
		}
		r.owner = c.owner
		return []queueRow{r}
	case "renew": // one that is locked is passed by
		return only(ours || !a.changed)
	case "ack":
		to := r
		to.state = queue.Done
		return settled(to)
	case "fail":
		to := r
		to.state, to.attempts = queue.Dead, r.attempts+1
		return settled(to)
	case "abandon":
		return settled(r.charged())
	case "release":
		return settled(r)
	case "get":
		return only(r.state == a.state && r.attempts == a.attempts)
	}
	panic(c.verb)
}

// queueModel is a message, whose lease may run out at any moment, and be reaped.
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
		before := []queueRow{state.(queueRow)}
		if before[0].owner != 0 {
			before = append(before, before[0].charged())
		}
		for _, row := range before {
			for _, after := range row.after(input.(queueCall), output.(queueAnswer)) {
				next = append(next, after)
			}
		}
		return next
	},
}).ToModel()

// historian writes down who asked what when, and what the answers were.
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

// historyWorker does at random what somebody may who works on messages, also with those that it has lost.
type historyWorker struct {
	*historian
	number int
	store  *queue.Store
	owner  queue.Owner
	newest func() string // a message to store, for some time the same
	had    []string      // messages claimed lately
}

func (w *historyWorker) step(ctx context.Context) error {
	ask := func(verb, id string, fn func(id queue.ID) (queueAnswer, error)) error {
		call := w.call()
		answer, err := fn(item("shop", id).ID)
		w.returned(call, queueCall{verb, id, w.number}, answer)
		return err
	}
	settle := func(verb string, fn func(id queue.ID) (int, error)) error {
		if len(w.had) == 0 {
			return nil
		}
		return ask(verb, w.had[rand.IntN(len(w.had))], func(id queue.ID) (queueAnswer, error) {
			n, err := fn(id)
			return queueAnswer{changed: n == 1}, err
		})
	}
	switch n := rand.IntN(20); {
	case n < 3:
		return ask("enqueue", w.newest(), func(id queue.ID) (queueAnswer, error) {
			stored, err := w.store.Enqueue(ctx, item("shop", id.MessageID))
			if err != nil {
				return queueAnswer{}, err
			}
			return queueAnswer{stored: stored[0].Result}, nil
		})
	case n < 9:
		call := w.call()
		msgs, err := w.store.Claim(ctx, queue.Claim{Owner: w.owner, LeaseTTL: time.Second, Limit: 2})
		for _, msg := range msgs {
			w.returned(call, queueCall{"claim", msg.MessageID, w.number}, queueAnswer{attempts: msg.Attempt})
			w.had = append(w.had[max(0, len(w.had)-3):], msg.MessageID)
		}
		return err
	case n < 11:
		return settle("ack", func(id queue.ID) (int, error) { return w.store.Ack(ctx, w.owner, id) })
	case n < 13:
		return settle("abandon", func(id queue.ID) (int, error) { return w.store.Abandon(ctx, queue.Abandon{Owner: w.owner}, id) })
	case n < 14:
		return settle("fail", func(id queue.ID) (int, error) { return w.store.Fail(ctx, queue.Fail{Owner: w.owner}, id) })
	case n < 16:
		return settle("release", func(id queue.ID) (int, error) { return w.store.Release(ctx, w.owner, id) })
	case n < 17:
		return settle("renew", func(id queue.ID) (int, error) {
			ours, err := w.store.Renew(ctx, queue.Renew{Owner: w.owner, LeaseTTL: time.Second}, id)
			return len(ours), err
		})
	case n < 18:
		_, err := w.store.ReapExpired(ctx)
		return err
	}
	if len(w.had) == 0 {
		return nil
	}
	return ask("get", w.had[len(w.had)-1], func(id queue.ID) (queueAnswer, error) {
		msg, err := w.store.Get(ctx, id)
		return queueAnswer{state: msg.State, attempts: msg.Attempt}, err
	})
}

// TestHistoryOfAQueue: whatever several owners do at once with the same messages, what each of them is told is what the states of a
// row allow in some order, each call at one moment between its beginning and its end.
func TestHistoryOfAQueue(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	h := newPgxHandle(t, newMigratedDatabase(t))
	shortLeases(t, h)
	steps := 200
	if long {
		steps = 20_000
	}
	seen := &historian{began: time.Now()}
	var asked atomic.Int64
	newest := func() string { return fmt.Sprintf("%04d", asked.Add(1)/10) }
	var group errgroup.Group
	for i := range 6 {
		w := &historyWorker{historian: seen, number: i + 1, newest: newest, owner: queue.NewOwner(), store: newStore(t, h, queue.StoreConfig{
			MaxAttempts: historyAttempts, Backoff: outbox.Backoff{Initial: -1},
		})}
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
	explained := 0
	for _, part := range queueModel.Partition(seen.all) {
		switch result := porcupine.CheckOperationsTimeout(queueModel, part, patience); result {
		case porcupine.Ok:
			explained++
		case porcupine.Illegal:
			t.Fatalf("%s: %s", result, describeHistory(part))
		case porcupine.Unknown:
			t.Logf("no order of %d calls was found within %s, nor that there is none", len(part), patience)
		}
	}
	require.Positive(t, explained, "messages with an order of their calls that the model allows")
	t.Logf("%d calls of %d messages, %d leases ran out", len(seen.all), explained, h.count(t, "select sum(crashes) from inbox_queue"))
}

func describeHistory(part []porcupine.Operation) string {
	var b strings.Builder
	slices.SortFunc(part, func(x, y porcupine.Operation) int { return int(x.Call - y.Call) })
	for _, op := range part {
		fmt.Fprintf(&b, "\n%12s to %12s  %+v  %+v", time.Duration(op.Call), time.Duration(op.Return), op.Input, op.Output)
	}
	return b.String()
}

// shortLeases has the database end all leases after some milliseconds, whatever was asked for.
func shortLeases(t testing.TB, h handle) {
	t.Helper()
	h.exec(t, `create function short() returns trigger language plpgsql as $$ begin
		new.locked_until := least(new.locked_until, clock_timestamp() + interval '5 milliseconds'); return new; end $$`)
	h.exec(t, `create trigger short before update on inbox_queue for each row execute function short()`)
}
