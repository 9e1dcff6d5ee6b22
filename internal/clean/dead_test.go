package clean

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// deadQueue is a database whose queue has old dead messages. It refuses changes of the first ones.
type deadQueue struct {
	drive.Pool
	dead     []int64
	refused  int64
	outcomes []string // in the audit log
}

func (q *deadQueue) Name() string { return "fake" }
func (q *deadQueue) ID() any      { return q }

func (q *deadQueue) Query(_ context.Context, query string, args ...any) (drive.Rows, error) {
	rows := &deadRows{}
	switch {
	case strings.HasPrefix(query, "INSERT"):
		rows.rows = [][]any{{int64(1)}}
	case strings.HasPrefix(query, "UPDATE"):
		q.outcomes = append(q.outcomes, args[1].(string))
	case strings.Contains(query, "FOR UPDATE"):
		names := args[1].([]string)
		if first, _ := strconv.ParseInt(names[0], 10, 64); first <= q.refused {
			return nil, errors.New("the message is needed")
		}
		q.dead = slices.DeleteFunc(q.dead, func(id int64) bool { return slices.Contains(names, strconv.FormatInt(id, 10)) })
		rows.rows = [][]any{{int64(len(names)), []byte("[]"), nil}}
	default:
		for _, id := range q.dead {
			if id > args[5].(int64) && len(rows.rows) < int(args[0].(int64)) {
				rows.rows = append(rows.rows, []any{"", "-infinity", strconv.FormatInt(id, 10), id, "shop", int64(0), true})
			}
		}
	}
	return rows, nil
}

type deadRows struct {
	rows [][]any
	next int
}

func (r *deadRows) Next() bool   { r.next++; return r.next <= len(r.rows) }
func (r *deadRows) Err() error   { return nil }
func (r *deadRows) Close() error { return nil }

func (r *deadRows) Scan(dest ...any) error {
	for i, to := range dest {
		if v := r.rows[r.next-1][i]; v != nil {
			reflect.ValueOf(to).Elem().Set(reflect.ValueOf(v))
		}
	}
	return nil
}

// TestManyRefusedMessages: if many messages in a row are refused, the round ends, and the next one continues after
// them.
func TestManyRefusedMessages(t *testing.T) {
	q := &deadQueue{refused: maxRefused + 50}
	for id := range int64(3 * Batch) {
		q.dead = append(q.dead, id+1)
	}
	db, err := core.NewDB(q, core.Config{DisableNotify: true}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	d := &Dead{
		DB: db, Logger: watermill.NopLogger{}, Store: sqltext.Queue, Retention: time.Hour, Timeout: time.Minute,
	}
	for round, left := range []int{3 * Batch, maxRefused + 50, maxRefused + 50, maxRefused + 50} {
		d.at = time.Time{}
		err := d.Discard(t.Context())
		if len(q.dead) != left {
			t.Errorf("round %d: %d messages are dead, want %d", round, len(q.dead), left)
		}
		if err == nil || !strings.Contains(q.outcomes[round], "the message is needed") {
			t.Errorf("round %d: error %v, in the audit log %q", round, err, q.outcomes)
		}
		if err := d.Discard(t.Context()); err != nil || len(q.outcomes) != round+1 {
			t.Errorf("round %d was repeated: %v", round, err)
		}
	}
}

// TestInterruptedRound: its audit entry ends, and the next round continues it.
func TestInterruptedRound(t *testing.T) {
	q := &deadQueue{dead: []int64{1}, refused: 1}
	db, err := core.NewDB(q, core.Config{DisableNotify: true}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	d := &Dead{
		DB: db, Logger: watermill.NopLogger{}, Store: sqltext.Queue, Retention: time.Hour, Timeout: time.Minute,
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Discard(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("its text is %v", err)
	}
	q.refused = 0
	if err := d.Discard(t.Context()); err != nil || len(q.dead) > 0 {
		t.Errorf("the round is not continued: %v", err)
	}
	if len(q.outcomes) != 2 || !strings.Contains(q.outcomes[0], "interrupted") || q.outcomes[1] != "" {
		t.Errorf("the audit log has %q", q.outcomes)
	}
}
