package forwarder

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/window"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// answer is the complete result of a read.
type answer struct {
	machine.ReadAnswer
	at    time.Time // when the read was sent, on the database's clock
	large bool      // some rows came without their payload
}

// collector builds an answer from the results of a read.
type collector struct {
	answer
	window *window.Request
	found  bool   // the header
	life   string // from the header

	lane int16
	row  board.Row // every row is scanned into this one
	dest []any     // its fields
	some []board.Row
}

func newCollector(req *machine.ReadRequest, expected int) *collector {
	c := &collector{window: &req.Window}
	c.Read = board.Read{
		ByID: make(map[int64]board.Found, len(req.Board.IDs)), Ready: make([]*board.Row, 0, expected), DueRead: req.Due,
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
	c.lane &^= sqltext.WithoutPayload
	source := c.lane &^ (window.Lanes - 1)
	if source == sqltext.FromHeader {
		c.found = true
		err := c.header(&c.row)
		c.life = c.window.Life(&c.Answer)
		return err
	}
	c.add(source, c.lane-source)
	return nil
}

// add adds a row. sqltext defines the sources for which a row is read.
func (c *collector) add(source, lane int16) {
	row := c.keep()
	row.Term = board.Term{Lane: lane, Epoch: c.window.Epochs[lane]}
	row.Life = c.life
	if row.Large {
		c.large = true
	} else {
		c.came(row)
	}
	switch source {
	case sqltext.FromID, sqltext.FromIDDead:
		c.Read.ByID[row.ID] = board.Found{Row: row, Dead: source == sqltext.FromIDDead}
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

// came counts a row once its payload is known.
func (a *answer) came(row *board.Row) {
	row.Large, row.Generation = false, generationOf(row.Metadata)
	a.Rows++
	a.Bytes += int64(len(row.Payload) + len(row.Metadata))
}

// keep copies the scanned row. Rows are allocated in blocks, because there may be many.
func (c *collector) keep() *board.Row {
	if len(c.some) == cap(c.some) {
		c.some = make([]board.Row, 0, min(max(2*cap(c.some), 1), 64))
	}
	c.some = append(c.some, c.row)
	return &c.some[len(c.some)-1]
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

// generationOf returns the generation, which hardly any message has.
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
		generation = string(found.Generation) // not a string: the same text as ->> returns
	}
	return generation
}
