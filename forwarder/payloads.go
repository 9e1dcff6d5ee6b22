package forwarder

import (
	"context"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
	"github.com/millrace-go/watermill-outbox/internal/drive"
)

// mostTardy is how often the time for payloads is doubled at most.
const mostTardy = 6

// payloads reads what the answer to a read leaves out, as far as there is room, and takes out of it the rows that there
// is no room for. After an error what has come until then counts: it is returned only if that is nothing.
func (r *reader) payloads(ctx context.Context, req *machine.ReadRequest, ans *answer) error {
	var wanted []*board.Row
	r.e.step(func(_ time.Time, m *machine.Machine) { wanted = m.Wanted(req, &ans.ReadAnswer) })
	if len(wanted) == 0 {
		return nil
	}
	rows := make(map[int64][]*board.Row, len(wanted)) // one may be wanted for two reasons
	ids := make([]int64, 0, len(wanted))
	for _, row := range wanted {
		if rows[row.ID] == nil {
			ids = append(ids, row.ID)
		}
		rows[row.ID] = append(rows[row.ID], row)
	}
	came, late, err := r.fetchPayloads(ctx, ids, max(0, req.Window.Bytes-ans.Bytes))
	for _, p := range came {
		for _, row := range rows[p.id] {
			if row.UUID == p.uuid { // else it is another message, in another life
				row.Payload, row.Metadata = p.payload, p.metadata
				ans.came(row)
			}
		}
	}
	gone := map[int64]bool{}
	for _, id := range ids {
		gone[id] = !late[id] && slices.ContainsFunc(rows[id], func(row *board.Row) bool { return row.Large })
	}
	ans.Cut = ans.Read.Leave(late, gone)
	ans.TimedOut = timedOut(err)
	if len(came) > 0 {
		return nil
	}
	return err
}

// payload is what was left out of a row.
type payload struct {
	id                int64
	uuid              string
	payload, metadata []byte
}

// fetchPayloads reads those of some ids, as far as there is room. late are the ids of which nothing is known to be
// wrong but that theirs did not come. A message that takes longer alone than a statement may is given more time
// whenever it is tried.
func (r *reader) fetchPayloads(
	ctx context.Context, ids []int64, room int64,
) (came []payload, late map[int64]bool, err error) {
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, r.e.cfg.QueryTimeout<<r.tardy)
	defer cancel()
	late = map[int64]bool{}
	heard := map[int64]bool{}
	err = drive.Collect(ctx, r.q, func(rows drive.Rows) error {
		var p payload
		var whole bool
		if err := rows.Scan(&p.id, &p.uuid, &p.payload, &p.metadata, &whole); err != nil {
			return err
		}
		heard[p.id] = true
		if whole {
			came = append(came, p)
		} else {
			late[p.id] = true
		}
		return nil
	}, r.e.sql.fetchPayloads, ids, room)
	switch {
	case err == nil && time.Since(begun) < r.e.cfg.QueryTimeout:
		r.tardy = 0
	case timedOut(err) && len(came) == 0:
		r.tardy = min(r.tardy+1, mostTardy)
	}
	if err != nil {
		for _, id := range ids {
			late[id] = late[id] || !heard[id]
		}
	}
	return came, late, err
}
