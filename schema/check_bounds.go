package schema

import (
	"context"
	"fmt"
	"math"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// bounds finds the checks that Partition and a roll add for a moment, and that a process which was killed leaves: from
// some id on they refuse messages. As long as that id is ahead it is a warning, as it is while they run.
func (c *inspection) bounds(ctx context.Context) error {
	outbox := c.names.WithDefaults().Outbox
	return drive.Collect(ctx, c.q, func(rows drive.Rows) error {
		var table, check string
		var ofDefault bool
		var from, to, last int64
		if err := rows.Scan(&table, &check, &ofDefault, &from, &to, &last); err != nil {
			return err
		}
		again := "run outboxctl migrate partition (schema.Partition) again"
		if ofDefault {
			again = "run outboxctl roll (admin.RollOutbox) again"
		}
		ids := fmt.Sprintf("from id %d on", from)
		if to < math.MaxInt64 {
			ids = fmt.Sprintf("from id %d to %d", from, to-1)
		}
		object := "check " + check + " of table " + table
		cure := again + ", or ALTER TABLE " + table + " DROP CONSTRAINT " + check
		switch {
		case last >= to: // it is behind
		case last >= from-1:
			c.denial(object, cure, "refuses messages %s, and the last id is %d: the call that added it was killed", ids, last)
		default:
			c.warning(object, cure,
				"will refuse messages %s, and the last id is %d: the call that added it still runs, or was killed", ids, last)
		}
		return nil
	}, c.names.Render(sqltext.CheckBounds), outbox+"_below")
}
