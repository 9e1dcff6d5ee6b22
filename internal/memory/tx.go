package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/drive"
)

// Tx is a transaction. One goroutine uses it at a time; Database.mu guards it.
type Tx struct {
	db         *Database
	readOnly   bool
	repeatable bool

	began      int64    // how many commits there were at the first statement
	first      bool     // there was one
	nr         int64    // 0 until it changes something
	undo       []func() // newest last
	held       []held   // may be released since
	savepoints []savepoint
	waitsFor   *Tx
	givesBack  bool  // it has taken a message from its owner that is not done
	failed     error // a statement
	ended      bool
}

// savepoint is how much there was to undo when it was made.
type savepoint struct {
	name string
	undo int
}

var _ drive.OwnTx = (*Tx)(nil)

// Exec runs one operation, or SAVEPOINT, RELEASE and ROLLBACK TO.
func (t *Tx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	res, err := t.run(ctx, query, args)
	return res.touched, err
}

// Query is Exec for an operation that returns rows.
func (t *Tx) Query(ctx context.Context, query string, args ...any) (drive.Rows, error) {
	res, err := t.run(ctx, query, args)
	if err != nil {
		return nil, err
	}
	return &rows{list: res.rows}, nil
}

func (t *Tx) run(ctx context.Context, query string, args []any) (result, error) {
	t.db.mu.Lock()
	defer t.db.mu.Unlock()
	if !t.first {
		t.first, t.began = true, t.db.commits
	}
	words := strings.Fields(query)
	switch {
	case t.ended:
		return result{}, drive.ErrTxEnded
	case t.db.closed():
		return result{}, errClosed
	case len(words) == 4 && words[0] == "rollback" && words[1] == "to":
		return result{}, t.rollbackTo(words[3])
	case t.failed != nil:
		return result{}, sqlError{
			"25P02", "the transaction is aborted, because a statement in it failed: " + t.failed.Error(),
		}
	}
	res, err := t.statement(ctx, query, words, args)
	if err != nil {
		t.failed = err
	}
	return res, err
}

func (t *Tx) statement(ctx context.Context, query string, words []string, args []any) (result, error) {
	if err := ctx.Err(); err != nil {
		return result{}, err
	}
	switch {
	case len(words) == 2 && words[0] == "savepoint":
		t.savepoints = append(t.savepoints, savepoint{words[1], len(t.undo)})
		return result{}, nil
	case len(words) == 3 && words[0] == "release":
		i, err := t.find(words[2])
		if err == nil {
			t.savepoints = t.savepoints[:i]
		}
		return result{}, err
	}
	op, known := operations()[query]
	switch {
	case !known:
		return result{}, unknown(query)
	case t.readOnly && !op.reads:
		return result{}, sqlError{drive.ReadOnlyServer, "the transaction is read-only"}
	}
	return op.run(&call{ctx: ctx, db: t.db, tx: t, args: args, at: t.db.now()})
}

func (t *Tx) find(name string) (int, error) {
	for i, s := range slices.Backward(t.savepoints) {
		if s.name == name {
			return i, nil
		}
	}
	return 0, sqlError{"3B001", fmt.Sprintf("there is no savepoint %q", name)}
}

func (t *Tx) rollbackTo(name string) error {
	i, err := t.find(name)
	if err != nil {
		return err
	}
	t.undoTo(t.savepoints[i].undo)
	t.savepoints, t.failed = t.savepoints[:i+1], nil
	return nil
}

func (t *Tx) undoTo(n int) {
	for _, undo := range slices.Backward(t.undo[n:]) {
		undo()
	}
	t.undo = t.undo[:n]
}

// number is that of the transaction, which it has from its first change on. Called under mu.
func (t *Tx) number() int64 {
	if t.nr == 0 {
		t.db.txNumber++
		t.nr = t.db.txNumber
		t.db.changing[t.nr] = t
	}
	return t.nr
}

// holds notes that the transaction has taken a row.
func (t *Tx) holds(r held) {
	t.held = append(t.held, r)
	t.undo = append(t.undo, r.release)
}

// Commit makes what was changed visible, after what is pending. If ctx is over or a statement has failed it rolls back.
func (t *Tx) Commit(ctx context.Context, pending, _ []drive.Statement) error {
	for _, s := range pending {
		if _, err := t.run(ctx, s.SQL, s.Args); err != nil {
			return errors.Join(err, t.Rollback(ctx))
		}
	}
	t.db.mu.Lock()
	defer t.db.mu.Unlock()
	err := ctx.Err()
	switch {
	case t.ended:
		return drive.ErrTxEnded
	case t.db.closed():
		err = errClosed
	case t.failed != nil:
		err = drive.Checked(ctx, sqlError{"25P02", t.failed.Error()})
	}
	if err != nil {
		t.end(nil)
		return err
	}
	t.db.commits++
	t.end(func(r held) { r.commit(t, t.db.commits) })
	return nil
}

// Rollback undoes everything, whatever became of ctx.
func (t *Tx) Rollback(context.Context) error {
	t.db.mu.Lock()
	defer t.db.mu.Unlock()
	if !t.ended {
		t.end(nil)
	}
	return nil
}

// end gives all rows up, with what keep does to each or as they were.
func (t *Tx) end(keep func(held)) {
	t.ended = true
	delete(t.db.changing, t.nr)
	if keep == nil {
		t.undoTo(0)
		return
	}
	for _, r := range t.held {
		keep(r)
	}
}

// Hints says no: nothing could be given one.
func (t *Tx) Hints() bool { return false }

// Ended says whether other code has ended it, which is impossible.
func (t *Tx) Ended(context.Context) bool { return false }

// HandOut returns the Tx, which is of no type that outbox.PgxTx and SQLTx hand out.
func (t *Tx) HandOut(context.Context) (any, error) { return t, nil }

// Mark does nothing.
func (t *Tx) Mark(context.Context) error { return nil }

// Marked says no.
func (t *Tx) Marked() bool { return false }

// Later says no: nothing is gained by waiting.
func (t *Tx) Later() bool { return false }
