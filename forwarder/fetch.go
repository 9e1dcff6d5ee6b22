package forwarder

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/millrace-go/watermill-outbox/schema"
)

func (e *engine) fetchArgs(req request) []any {
	xids, bounds, los, segmentBounds := e.reader.tracker.args()
	n := len(req.lanes)
	lanes, epochs, marks := make([]int64, n), make([]int64, n), make([]int64, n)
	limits, rewound := make([]int64, n), make([]int64, n)
	for i, l := range req.lanes {
		lanes[i], epochs[i], marks[i] = int64(l.number), l.epoch, l.mark
		limits[i], rewound[i] = req.limits[i].rows, req.limits[i].rewound
	}
	args := []any{e.cfg.Scope, e.owner, xids, bounds, los, segmentBounds, lanes, epochs, marks, limits, rewound,
		topicsArg(e.cfg.Topics), req.span}
	if req.due == nil && len(req.wanted) == 0 {
		return args
	}
	ids := make([]int64, len(req.wanted))
	for i, w := range req.wanted {
		ids[i] = w.id
	}
	due := req.due
	if due == nil {
		due = []int64{}
	}
	return append(args, ids, e.cfg.HoldDead, due)
}

func topicsArg(topics []string) []string {
	if topics == nil {
		return []string{}
	}
	return topics
}

// header is the first result of schema.Fetch.
type header struct {
	Snapshot string  `json:"snapshot"`
	NextXid  int64   `json:"next_xid"`
	Seq      int64   `json:"seq"`
	Rewind   *int64  `json:"rewind"`
	Standby  bool    `json:"standby"`
	Life     *string `json:"life"` // nil after a crash, until somebody begins a new one
	Lanes    []int16 `json:"lanes"`
}

const featureNotSupported = "0A000"

// errNoLife: nobody has read the outbox since the server crashed, or ever.
var errNoLife = errors.New("the server's life has no name yet")

func (e *engine) onStandby(ctx context.Context) (standby bool) {
	err := schema.Collect(ctx, e.db, func(rows schema.Rows) error { return rows.Scan(new(int64), &standby) }, schema.CheckServer)
	return err == nil && standby
}

// fetch runs schema.Fetch. It must be a transaction of its own: the statement's answer about the next
// transaction id is computed once per transaction.
func (e *engine) fetch(ctx context.Context, req request, args []any, expected int) (res response, bytes int, err error) {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	res = response{rewind: -1, owned: make(map[int16]bool, len(req.lanes)), byID: make(map[int64]fetched, len(req.wanted)), ready: make([]fetched, 0, expected)}
	query := e.sql.fetch
	if req.due != nil || len(req.wanted) > 0 {
		query = e.sql.fetchMore
	}
	var head *header
	var f fetched // one for all rows, as there are many
	dest := []any{&f.laneNumber, &f.id, &f.uuid, &f.topic, &f.keyText,
		&f.payload, &f.metadata, &f.enqueuedAt, &f.attempts}
	err = schema.Collect(ctx, e.db, func(rows schema.Rows) error {
		f.payload, f.metadata = nil, nil // their arrays belong to the row before
		if err := rows.Scan(dest...); err != nil {
			return err
		}
		bytes += len(f.payload) + len(f.metadata)
		source := f.laneNumber &^ (laneCount - 1)
		f.laneNumber -= source
		switch f.dead = source == schema.FromIDDead; source {
		case schema.FromHeader:
			head = &header{}
			return json.Unmarshal(f.metadata, head)
		case schema.FromID, schema.FromIDDead:
			res.byID[f.id] = f
		case schema.FromReady:
			res.ready = append(res.ready, f)
		case schema.FromDue:
			res.due = append(res.due, f)
		}
		return nil
	}, query, args...)
	switch {
	case schema.SQLState(err) == featureNotSupported && e.onStandby(ctx):
		return res, bytes, ErrStandby // which cannot look at what is unlogged
	case err != nil:
		return res, bytes, err
	case head == nil:
		return res, bytes, errors.New("the read returned no header")
	case head.Standby:
		return res, bytes, ErrStandby
	case head.Life == nil:
		return res, bytes, errNoLife
	}
	res.life = *head.Life
	if head.Rewind != nil {
		res.rewind = *head.Rewind
	}
	for _, n := range head.Lanes {
		res.owned[n] = true
	}
	sortFetched(res.ready)
	res.snapshot, err = parseSnapshot(head.Snapshot, head.NextXid, head.Seq)
	return res, bytes, err
}
