package forwarder

import (
	"context"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
	"github.com/millrace-go/watermill-outbox/internal/drive"
)

// mostTardy is how often the time for payloads can be doubled.
const maxTimeoutFactor = 6

// payloads reads the payloads that the answer to a read left out, as far as there is room, and removes the other rows
// from the answer. After an error the payloads read so far count: the error is returned only if there are none.
func (r *reader) payloads(ctx context.Context, req *machine.ReadRequest, ans *answer) error {
	var wanted []*board.Row
	r.e.step(func(_ time.Time, m *machine.Machine) { wanted = m.Wanted(req, &ans.ReadAnswer) })
	if len(wanted) == 0 {
		return nil
	}
	rows := make(map[int64][]*board.Row, len(wanted)) // one id may be wanted for two reasons
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
			if row.UUID == p.uuid { // otherwise it is another message, of another incarnation
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

// payload is the part that was left out of a row.
type payload struct {
	id                int64
	uuid              string
	payload, metadata []byte
}

// fetchPayloads reads the payloads of some ids, as far as there is room. late are the ids whose payload did not come,
// without any other sign of a fault. A message that alone takes longer than a statement may is given more time on each
// try.
func (r *reader) fetchPayloads(
	ctx context.Context, ids []int64, room int64,
) (came []payload, late map[int64]bool, err error) {
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, r.e.cfg.QueryTimeout<<r.timeoutFactor)
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
		r.timeoutFactor = 0
	case timedOut(err) && len(came) == 0:
		r.timeoutFactor = min(r.timeoutFactor+1, maxTimeoutFactor)
	}
	if err != nil {
		for _, id := range ids {
			late[id] = late[id] || !heard[id]
		}
	}
	return came, late, err
}
