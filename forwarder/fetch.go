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

	"github.com/millrace-go/watermill-outbox/forwarder/internal/coordinator"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/cursor"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// fetch runs one of the reading statements. It must be its own transaction: Postgres computes the next transaction id
// once per transaction.
func (e *engine) fetch(
	ctx context.Context, q drive.Querier, dedicated bool, req *coordinator.ReadRequest, expected int,
) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	c := newCollector(req, expected)
	query, args := e.statement(req, dedicated)
	err := drive.Collect(ctx, q, c.collect, query, args...)
	switch {
	case text.SQLState(err) == featureNotSupported && onStandby(ctx, q):
		return c.answer, errStandby // unlogged tables cannot be read there
	case err != nil:
		return c.answer, err
	case !c.found:
		return c.answer, errors.New("the read returned no header")
	case c.Incarnation == "":
		return c.answer, errNoIncarnation
	}
	sortRows(c.Read.Ready)
	sortRows(c.Read.Caught)
	return c.answer, nil
}

// statement chooses the statement that reads only what was requested. apart is true for a dedicated connection.
func (e *engine) statement(req *coordinator.ReadRequest, dedicated bool) (query string, args []any) {
	w := &req.Cursors
	args = []any{
		e.cfg.Scope, e.owner, w.Xids, w.Bounds, w.Los, w.SegmentBounds, w.Epochs[:], w.Cursors[:], w.Limits[:], w.Rewound[:],
		topicsArg(e.cfg.Topics), w.Span, w.Whole,
	}
	query, more := e.sql.fetch, e.sql.fetchMore
	if dedicated {
		query, more = e.sql.fetchApart, e.sql.fetchMoreApart
	}
	if w.Single {
		query, more = e.sql.fetchRange, e.sql.fetchRangeMore
	}
	catch := &req.Dispatch.CatchUp
	if !req.Due && len(req.Dispatch.IDs) == 0 && catch.None() {
		return query, args
	}
	due := []int64{}
	if req.Due {
		due = req.Dispatch.Due[:]
	}
	limits := []int64{}
	if !catch.None() {
		limits = catch.Limits[:]
	}
	return more, append(args, sorted(req.Dispatch.IDs), e.cfg.BlockKeyOnDead, due, topicsArg(req.Dispatch.Closed),
		catch.From[:], catch.Upto[:], limits, int64(catch.All), topicsArg(catch.Keys),
		topicsArg(req.Dispatch.Blocked))
}

const featureNotSupported = "0A000"

func onStandby(ctx context.Context, q drive.Querier) (standby bool) {
	err := drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&standby) }, "SELECT pg_is_in_recovery()")
	return err == nil && standby
}

func topicsArg(topics []string) []string {
	if topics == nil {
		return []string{}
	}
	return topics
}

// sorted returns sorted ids, as the statements that look ids up need them: only ids between the first and the last are
// found.
func sorted(ids []int64) []int64 {
	ids = append([]int64{}, ids...) // not nil
	slices.Sort(ids)
	return ids
}

// sortRows orders rows by id: the oldest are published first, and settled together.
func sortRows(rows []*dispatch.Row) {
	slices.SortFunc(rows, func(a, b *dispatch.Row) int { return cmp.Compare(a.ID, b.ID) })
}

// answer is the complete result of a read.
type answer struct {
	coordinator.ReadAnswer
	at    time.Time // when the read was sent, on the database's clock
	large bool      // some rows came without their payload
}

// collector builds an answer from the results of a read.
type collector struct {
	answer
	cursors     *cursor.Request
	found       bool   // the header
	incarnation string // from the header

	lane int16
	row  dispatch.Row // every row is scanned into this one
	dest []any        // its fields
	some []dispatch.Row
}

func newCollector(req *coordinator.ReadRequest, expected int) *collector {
	c := &collector{cursors: &req.Cursors}
	c.Read = dispatch.Read{
		ByID:  make(map[int64]dispatch.Found, len(req.Dispatch.IDs)),
		Ready: make([]*dispatch.Row, 0, expected), DueRead: req.Due,
	}
	f := &c.row
	c.dest = []any{&c.lane, &f.ID, &f.UUID, &f.Topic, &f.Key, &f.Payload, &f.Metadata, &f.CreatedAt, &f.Attempts}
	return c
}

// collect scans the next result.
func (c *collector) collect(rows drive.Rows) error {
	c.row.Payload, c.row.Metadata = nil, nil // the arrays belong to the previous row
	if err := rows.Scan(c.dest...); err != nil {
		return err
	}
	c.row.Large = c.lane&sqltext.WithoutPayload != 0
	c.row.Untried = c.lane&sqltext.Untried != 0
	c.lane &^= sqltext.WithoutPayload | sqltext.Untried
	source := c.lane &^ (cursor.Lanes - 1)
	if source == sqltext.FromHeader {
		c.found = true
		err := c.header(&c.row)
		c.incarnation = c.cursors.Incarnation(&c.Answer)
		return err
	}
	c.add(source, c.lane-source)
	return nil
}

// add adds a row. sqltext defines the sources for which a row is read.
func (c *collector) add(source, lane int16) {
	row := c.keep()
	row.Assignment = dispatch.Assignment{Lane: lane, Epoch: c.cursors.Epochs[lane]}
	row.Incarnation, row.Generation = c.incarnation, generationOf(row.Metadata)
	if row.Large {
		c.large = true
		row.Metadata = nil
	} else {
		c.received(row)
	}
	switch source {
	case sqltext.FromID, sqltext.FromIDDead:
		c.Read.ByID[row.ID] = dispatch.Found{Row: row, Dead: source == sqltext.FromIDDead}
	case sqltext.FromReady:
		if c.Counts[lane]++; c.First == 0 || row.ID < c.First {
			c.First = row.ID
		}
		c.Last[lane] = max(c.Last[lane], row.ID)
		c.Read.Ready = append(c.Read.Ready, row)
	case sqltext.FromDeferred:
		c.Read.Caught = append(c.Read.Caught, row)
	case sqltext.FromDue:
		c.Read.Due = append(c.Read.Due, row)
	}
}

// received counts a row once its payload is known.
func (a *answer) received(row *dispatch.Row) {
	row.Large = false
	a.Rows++
	a.Bytes += int64(len(row.Payload) + len(row.Metadata))
}

// keep copies the scanned row. Rows are allocated in blocks, because there may be many.
func (c *collector) keep() *dispatch.Row {
	if len(c.some) == cap(c.some) {
		c.some = make([]dispatch.Row, 0, min(max(2*cap(c.some), 1), 64))
	}
	c.some = append(c.some, c.row)
	return &c.some[len(c.some)-1]
}

// header reads the first result.
func (a *answer) header(row *dispatch.Row) error {
	var nextXid, owned int64
	var standby int
	if _, err := fmt.Sscan(row.Key, &nextXid, &a.Rewind, &standby, &owned); err != nil {
		return fmt.Errorf("header %q: %w", row.Key, err)
	}
	if standby != 0 {
		return errStandby
	}
	for n := range a.Owned {
		a.Owned[n] = owned&(1<<n) != 0
	}
	a.Incarnation, a.at = row.Topic, row.CreatedAt
	var err error
	a.Snapshot, err = cursor.ParseSnapshot(row.UUID, nextXid, row.ID)
	return err
}

// generationOf returns the generation, which hardly any message has.
func generationOf(metadata []byte) string {
	if !bytes.Contains(metadata, []byte(core.MetadataGeneration)) {
		return ""
	}
	var found map[string]json.RawMessage // a struct's field would also match a key in another case
	_ = json.Unmarshal(metadata, &found) // Postgres wrote it
	var generation string
	if err := json.Unmarshal(found[core.MetadataGeneration], &generation); err != nil {
		generation = string(found[core.MetadataGeneration]) // not a string: the same text as ->> returns
	}
	return generation
}

// maxTimeoutFactor is how often the time for payloads can be doubled.
const maxTimeoutFactor = 6

// payloads reads the payloads that the answer to a read left out, as far as there is room, and removes the other rows
// from the answer. After an error the payloads read so far count: the error is returned only if there are none.
func (r *reader) payloads(ctx context.Context, req *coordinator.ReadRequest, ans *answer) error {
	var wanted []*dispatch.Row
	r.e.step(func(_ time.Time, c *coordinator.Coordinator) { wanted = c.WantedPayloads(req, &ans.ReadAnswer) })
	if len(wanted) == 0 {
		return nil
	}
	rows := make(map[int64][]*dispatch.Row, len(wanted)) // one id may be wanted for two reasons
	ids := make([]int64, 0, len(wanted))
	for _, row := range wanted {
		if rows[row.ID] == nil {
			ids = append(ids, row.ID)
		}
		rows[row.ID] = append(rows[row.ID], row)
	}
	came, err := r.fetchPayloads(ctx, ids, max(0, req.Cursors.Bytes-ans.Bytes))
	late := make(map[int64]bool, len(ids))
	for _, id := range ids {
		late[id] = true
	}
	for _, p := range came {
		for _, row := range rows[p.id] {
			// A difference means that it is the message of another incarnation, or that an operator has requeued it since
			// the read: other messages of its key may have been requeued with it, and go first.
			if row.UUID == p.uuid && row.Generation == generationOf(p.metadata) {
				row.Payload, row.Metadata = p.payload, p.metadata
				ans.received(row)
				delete(late, p.id)
			}
		}
	}
	ans.Cut = ans.Read.RemoveLarge(late)
	ans.TimedOut = timedOut(err)
	if len(came) > 0 {
		return nil
	}
	return err
}

// payload is the part that was left out of a row.
type payload struct {
	id                int64
	uuid              string
	payload, metadata []byte
}

// fetchPayloads reads the payloads of some ids, as far as there is room. If it fails, it also returns the payloads that
// it has read so far. A message that alone takes longer than a statement may is given more time on each try.
func (r *reader) fetchPayloads(ctx context.Context, ids []int64, room int64) (came []payload, err error) {
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, r.e.cfg.QueryTimeout<<r.timeoutFactor)
	defer cancel()
	err = drive.Collect(ctx, r.q, func(rows drive.Rows) error {
		var p payload
		if err := rows.Scan(&p.id, &p.uuid, &p.payload, &p.metadata); err != nil {
			return err
		}
		if p.id < 0 {
			return errStandby
		}
		came = append(came, p)
		return nil
	}, r.e.sql.fetchPayloads, ids, room)
	switch {
	case err == nil && time.Since(begun) < r.e.cfg.QueryTimeout:
		r.timeoutFactor = 0
	case timedOut(err) && len(came) == 0:
		r.timeoutFactor = min(r.timeoutFactor+1, maxTimeoutFactor)
	}
	return came, err
}
