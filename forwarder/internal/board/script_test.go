package board_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
)

// mostActs is how long a script may be: one that is longer says too little about the fault.
const mostActs = 15

// TestScripts makes the schedules of testdata again: each is a fault that the model found once, made short, in words.
// Unlike a seed a script means the same when the model has changed.
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
			d, acts := newDesk(t, board.Config{}), 0
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

// act does what a line says. All messages are in lane 0, on topic a, and have key k.
func (d *desk) act(what string, args []string) {
	d.t.Helper()
	switch what {
	case "commit": // messages, also with ids below the mark
		ids := d.ids(args)
		d.put(0, "k", "a", ids...)
		d.marks[0] = min(d.marks[0], slices.Min(ids)-1)
	case "again": // an operator wants messages sent again, in one act
		for _, id := range d.ids(args) {
			m := &message{id: id, key: "k", topic: "a", attempts: 1, due: d.now, act: "act"}
			if old := d.table[id]; old != nil {
				m.attempts = max(1, old.attempts)
			}
			d.table[id] = m
		}
	case "read": // and look for what fell due
		d.read()
	case "glance": // read, and do not look for what fell due
		a := d.begin()
		r := d.answer(a)
		r.Due, r.DueRead = nil, false
		d.finish(a, r)
	case "few": // read, with room for so many that fell due
		a := d.begin()
		a.Due[0] = d.ids(args)[0]
		d.finish(a, d.answer(a))
	case "recheck": // compare the heads
		d.b.HeadsSeen(d.now, d.now, d.terms[0], 0, 1000, d.heads(0))
		d.after()
	case "publish":
		d.returned(d.next(d.ids(args)...), board.OK)
	case "reject":
		d.returned(d.next(d.ids(args)...), board.Retry)
	case "unavailable": // the broker is
		d.returned(d.next(d.ids(args)...), board.Unavailable)
	case "idle": // nothing may be published
		d.none()
	case "settle":
		d.settle()
	case "pass": // time
		by, err := time.ParseDuration(strings.Join(args, ""))
		if err != nil {
			d.t.Fatal(err)
		}
		d.tick(by)
	default:
		d.t.Fatalf("there is no act %q", what)
	}
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
