package forwarder

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/window"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// answer is the complete result of a read.
type answer struct {
	window.Answer
	read board.Read
	at   time.Time // when it was asked for, on the database's clock
}

// fetch runs one of the statements that read. It must be a transaction of its own: the statement's answer about the next
// transaction id is computed once per transaction.
func (e *engine) fetch(ctx context.Context, q drive.Querier, req *request, expected int) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	w := &req.window
	args := []any{e.cfg.Scope, e.owner, w.Xids, w.Bounds, w.Los, w.SegmentBounds, w.Epochs[:], w.Marks[:], w.Limits[:], w.Rewound[:],
		topicsArg(e.cfg.Topics), w.Stretch}
	query, more := e.sql.fetch, e.sql.fetchMore
	if w.Single {
		query, more = e.sql.fetchRange, e.sql.fetchRangeMore
	}
	if req.due || len(req.asks.IDs) > 0 {
		due := []int64{}
		if req.due {
			due = req.asks.Due[:]
		}
		query, args = more, append(args, idsArg(req.asks.IDs), e.cfg.HoldDead, due, topicsArg(req.asks.Closed))
	}
	ans := answer{read: board.Read{ByID: make(map[int64]board.Found, len(req.asks.IDs)), Ready: make([]*board.Row, 0, expected), DueRead: req.due}}
	var lane int16
	var f board.Row // one for all to be scanned into
	dest := []any{&lane, &f.ID, &f.UUID, &f.Topic, &f.Key, &f.Payload, &f.Metadata, &f.CreatedAt, &f.Attempts}
	var some []board.Row // made some at a time, as there may be many
	found, life := false, ""
	err := drive.Collect(ctx, q, func(rows drive.Rows) error {
		f.Payload, f.Metadata = nil, nil // their arrays belong to the row before
		if err := rows.Scan(dest...); err != nil {
			return err
		}
		source := lane &^ (window.Lanes - 1)
		if source == sqltext.FromHeader {
			found = true
			err := ans.header(&f)
			life = w.Life(&ans.Answer)
			return err
		}
		lane -= source
		if len(some) == cap(some) {
			some = make([]board.Row, 0, min(max(2*cap(some), 1), 64))
		}
		some = append(some, f)
		row := &some[len(some)-1]
		row.Term = board.Term{Lane: lane, Epoch: w.Epochs[lane]}
		row.Life, row.Ready, row.Generation = life, source == sqltext.FromReady, generationOf(row.Metadata)
		ans.Rows++
		ans.Bytes += int64(len(row.Payload) + len(row.Metadata))
		switch source {
		case sqltext.FromID, sqltext.FromIDDead:
			ans.read.ByID[row.ID] = board.Found{Row: row, Dead: source == sqltext.FromIDDead}
		case sqltext.FromReady:
			if ans.Counts[lane]++; ans.First == 0 || row.ID < ans.First {
				ans.First = row.ID
			}
			ans.Last[lane] = max(ans.Last[lane], row.ID)
			ans.read.Ready = append(ans.read.Ready, row)
		case sqltext.FromDue:
			ans.read.Due = append(ans.read.Due, row)
		}
		return nil
	}, query, args...)
	switch {
	case text.SQLState(err) == featureNotSupported && onStandby(ctx, q):
		return ans, ErrStandby // which cannot look at what is unlogged
	case err != nil:
		return ans, err
	case !found:
		return ans, errors.New("the read returned no header")
	case ans.Life == "":
		return ans, errNoLife
	}
	sortRows(ans.read.Ready)
	return ans, nil
}

// generationOf finds what nearly no message has.
func generationOf(metadata []byte) string {
	if !bytes.Contains(metadata, []byte(core.MetadataGeneration)) {
		return ""
	}
	var found struct {
		Generation json.RawMessage `json:"outbox_generation"`
	}
	_ = json.Unmarshal(metadata, &found) // Postgres wrote it
	var generation string
	if err := json.Unmarshal(found.Generation, &generation); err != nil {
		generation = string(found.Generation) // no text: as ->> says it
	}
	return generation
}

const featureNotSupported = "0A000"

func onStandby(ctx context.Context, q drive.Querier) (standby bool) {
	err := drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&standby) }, "SELECT pg_is_in_recovery()")
	return err == nil && standby
}

// header reads the first result.
func (a *answer) header(row *board.Row) error {
	var nextXid, owned int64
	var standby int
	if _, err := fmt.Sscan(row.Key, &nextXid, &a.Rewind, &standby, &owned); err != nil {
		return fmt.Errorf("header %q: %w", row.Key, err)
	}
	if standby != 0 {
		return ErrStandby
	}
	for n := range a.Owned {
		a.Owned[n] = owned&(1<<n) != 0
	}
	a.Life, a.at = row.Topic, row.CreatedAt
	var err error
	a.Snapshot, err = window.ParseSnapshot(row.UUID, nextXid, row.ID)
	return err
}

func topicsArg(topics []string) []string {
	if topics == nil {
		return []string{}
	}
	return topics
}

func idsArg(ids []int64) []int64 {
	if ids == nil {
		return []int64{}
	}
	return ids
}

// sortRows orders rows by id: the oldest are published first, and settled together.
func sortRows(rows []*board.Row) {
	slices.SortFunc(rows, func(a, b *board.Row) int { return cmp.Compare(a.ID, b.ID) })
}
