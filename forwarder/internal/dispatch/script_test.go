package dispatch_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

// mostActs limits the length of a script: a longer one does not explain a fault.
const mostActs = 15

// scriptTimeout is the timeout of a script's publishes.
const scriptTimeout = 10 * time.Second

// TestScripts runs the schedules in testdata: each is a fault that the model once found, shortened and put into words.
// Unlike a seed, a script keeps its meaning when the model changes.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.script")
	if err != nil || len(files) < 3 {
		t.Fatalf("found scripts %v: %v", files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".script"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			d, acts := newDesk(t, dispatch.Config{PublishTimeout: scriptTimeout}), 0
			for line := range strings.Lines(string(text)) {
				if words := strings.Fields(line); len(words) > 0 && words[0] != "#" {
					acts++
					t.Logf("%2d %s", acts, strings.TrimSpace(line))
					d.act(words[0], words[1:])
				}
			}
			if acts > mostActs {
				t.Fatalf("%d acts, want at most %d", acts, mostActs)
			}
		})
	}
}

// act performs a line. All messages are in lane 0 and on topic a, and have key k unless the act gives each its own.
func (d *desk) act(what string, args []string) {
	d.t.Helper()
	switch what {
	case "commit": // messages, also with ids below the cursor
		ids := d.ids(args)
		d.put(0, "k", "a", ids...)
		d.marks[0] = min(d.marks[0], slices.Min(ids)-1)
	case "alone": // commit messages, each with its own key
		for _, id := range d.ids(args) {
			d.put(0, fmt.Sprint("k", id), "a", id)
		}
	case "other": // the same on topic b
		for _, id := range d.ids(args) {
			d.put(0, fmt.Sprint("k", id), "b", id)
		}
	case "elsewhere": // the same as commit on topic b
		ids := d.ids(args)
		d.put(0, "k", "b", ids...)
		d.marks[0] = min(d.marks[0], slices.Min(ids)-1)
	case "again": // an operator requeues messages in one act
		d.acts++
		for _, id := range d.ids(args) {
			m := &message{id: id, key: "k", topic: "a", attempts: 1, due: d.now, act: fmt.Sprint(d.acts)}
			if old := d.table[id]; old != nil {
				m.attempts = max(1, old.attempts)
			}
			d.table[id] = m
		}
	case "skip": // an operator discards messages
		for _, id := range d.ids(args) {
			delete(d.table, id)
		}
	case "read": // read, including due rows; maybe after some time
		if len(args) > 0 {
			d.pass(args[0])
		}
		d.read()
	case "glance": // read, without due rows
		a := d.begin()
		r := d.answer(a)
		r.Due, r.DueRead = nil, false
		d.finish(a, r)
	case "few": // read, with room for this many due rows
		a := d.begin()
		a.Due[0] = d.ids(args)[0]
		d.finish(a, d.answer(a))
	case "narrow": // read, with room for one payload
		d.readNarrow()
	case "recheck": // compare the blocked rows with the table
		d.b.BlockedSeen(d.now, d.now, d.terms[0], 0, 1000, d.blocked(0))
		d.after()
	case "start": // publishes, without a result yet
		for _, id := range d.ids(args) {
			d.next(id)
		}
	case "publish":
		d.answers(args, dispatch.OK)
	case "reject":
		d.answers(args, dispatch.Retry)
	case "hang": // calls in flight time out, and are rejected
		d.tick(scriptTimeout)
		d.hung = append(d.hung, d.expired...)
		d.timesOut(dispatch.Retry)
	case "lose": // calls in flight time out, because the broker is unreachable
		d.tick(scriptTimeout)
		d.hung = append(d.hung, d.expired...)
		d.timesOut(dispatch.Unavailable)
	case "late": // hung calls succeed
		for _, c := range d.hung {
			d.returned(c, dispatch.OK)
		}
		d.hung = nil
	case "unavailable": // the broker is unavailable
		d.answers(args, dispatch.Unavailable)
	case "unknown": // they fail without a verdict
		d.answers(args, dispatch.Unknown)
	case "idle": // nothing may be published
		d.none()
	case "settle": // settle all results, or only the failures, or only those since then
		published, failed := d.b.Results(1000)
		switch {
		case len(args) == 0:
			published, d.unsettled = append(d.unsettled, published...), nil
		case args[0] == "failures":
			published, d.unsettled = nil, append(d.unsettled, published...)
		}
		d.write(published, failed)
	case "close": // an operator pauses topic a
		d.pause("a")
	case "pass": // time passes
		d.pass(args[0])
	default:
		d.t.Fatalf("unknown act %q", what)
	}
}

// readNarrow reads large messages, with room for the payload of one.
func (d *desk) readNarrow() {
	d.t.Helper()
	a := d.begin()
	r := d.answer(a)
	for _, rows := range [][]*dispatch.Row{r.Ready, r.Due} {
		for _, row := range rows {
			row.Large, row.Payload = true, nil
		}
	}
	late := map[int64]bool{}
	for i, row := range d.b.WantedPayloads(a, &r) {
		row.Large, late[row.ID] = i > 0, i > 0
	}
	if cut := r.RemoveLarge(late)[0]; cut > 0 {
		d.marks[0] = cut - 1
	}
	d.finish(a, r)
}

// answers starts publishes unless they are in flight, and then makes each return.
func (d *desk) answers(args []string, v dispatch.Verdict) {
	d.t.Helper()
	var calls []*dispatch.Call
	for _, id := range d.ids(args) {
		inFlight := func(c *dispatch.Call) bool { return c.Row.ID == id && !slices.Contains(d.hung, c) }
		if i := slices.IndexFunc(d.calls, inFlight); i >= 0 {
			calls = append(calls, d.calls[i])
		} else {
			calls = append(calls, d.next(id))
		}
	}
	for _, c := range calls {
		d.returned(c, v)
	}
}

func (d *desk) pass(long string) {
	d.t.Helper()
	by, err := time.ParseDuration(long)
	if err != nil {
		d.t.Fatal(err)
	}
	d.tick(by)
}

func (d *desk) ids(words []string) (ids []int64) {
	d.t.Helper()
	for _, w := range words {
		id, err := strconv.ParseInt(w, 10, 64)
		if err != nil {
			d.t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}
