package admin

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/leaves"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

const checkViolation = "23514"

// make makes leaves until there are enough ahead, and leaves no promise behind, its own or that of one that was killed.
func (r *roll) make(ctx context.Context) error {
	before, err := r.promised(ctx)
	if err != nil {
		return err
	}
	return errors.Join(r.makeAll(ctx), r.release(context.WithoutCancel(ctx), before))
}

// promised says which promise the default has; 0 = none.
func (r *roll) promised(ctx context.Context) (id int64, err error) {
	if r.set.Default == nil || r.cfg.DryRun {
		return 0, nil
	}
	err = r.fetch(ctx, func(rows drive.Rows) error { return rows.Scan(&id) },
		r.boundSQL(sqltext.RollPromised, *r.set.Default, leaves.Range{}))
	return id, err
}

// release takes a promise away that no leaf was made for: it would refuse messages. It is the one of this roll, or one
// that was there before this roll began to make leaves, of one that was killed. Another is of a roll that works now.
func (r *roll) release(ctx context.Context, before int64) error {
	left, err := r.promised(ctx)
	if err != nil || left == 0 || left != before && left != r.own {
		return err
	}
	d := r.set.Default
	had, err := r.locked(ctx, []lock{{d.SQL, exclusive}}, func(t rawTx) error {
		now, err := t.do(r.boundSQL(sqltext.RollPromised, *d, leaves.Range{}))
		if err != nil || now[0] != strconv.FormatInt(left, 10) {
			return err
		}
		_, err = t.do(r.boundSQL(sqltext.RollUnbound, *d, leaves.Range{}))
		return err
	})
	if err == nil && !had {
		r.kept(ctx, d.Name, "its check %s_bound would refuse messages a leaf ahead, and it is in use: the next run retries",
			d.Name)
	}
	return err
}

// promise has the default know that it holds no id of a leaf that is made next. Once ids have come close to that leaf
// it would refuse them, so it is not made then; errAgain says so.
func (r *roll) promise(ctx context.Context, d leaves.Leaf, ids leaves.Range) (had bool, err error) {
	had, err = r.locked(ctx, []lock{{d.SQL, exclusive}}, func(t rawTx) error {
		if err := r.isAhead(t, ids); err != nil {
			return err
		}
		id, err := t.do(r.boundSQL(sqltext.RollBound+";\n"+sqltext.RollPromised, d, ids))
		if err == nil {
			r.own, err = strconv.ParseInt(id[0], 10, 64)
		}
		return err
	})
	if err != nil || !had {
		return had, err
	}
	err = r.patient(ctx, func(q drive.Querier) error {
		_, err := q.Exec(ctx, r.boundSQL(sqltext.RollValidate, d, ids))
		return err
	})
	switch text.SQLState(err) {
	case lockNotAvailable:
		return false, nil
	case text.UndefinedObject, checkViolation: // another roll has replaced it, or a row was put there by hand
		err = errAgain
	}
	return true, explain(err)
}

func (r *roll) boundSQL(statement string, d leaves.Leaf, ids leaves.Range) string {
	return strings.NewReplacer("{bound}", sqltext.Quote(d.Name+"_bound"), "{bound_text}", literal(d.Name+"_bound"),
		"{from}", strconv.FormatInt(ids.From, 10), "{to}", strconv.FormatInt(ids.To, 10)).
		Replace(sqltext.OfLeaf(statement, d.SQL))
}
