package admin

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const (
	fewAhead   = 2  // leaves; with fewer there is little time left
	manyLeaves = 32 // each statement that is planned over all of them pays for each
	rollLate   = 2 * time.Hour

	filledDefault = 10_000 // messages
)

// checkLeaves looks at an outbox in partitions, and whether it is rolled.
func (e *doctorRun) checkLeaves(ctx context.Context) error {
	p, err := e.partitions(ctx)
	if err != nil || !p.Partitioned {
		return err
	}
	inDefault, err := p.Count(ctx, e.db, e.db.Tables(), filledDefault+1)
	if err != nil {
		return explain(err)
	}
	e.leavesAhead(p)
	e.defaultLeaf(p, inDefault)
	e.rolled(p)
	if n := len(p.Leaves); n > manyLeaves {
		e.find("leaves_many", Warning, fmt.Sprintf("table %s has %d leaves: each statement that is planned over all of them "+
			"gets slower", e.db.Render("{outbox}"), n), "make larger ones from now on, and drop those that are empty"+
			e.roll(p, "--partition-size", fmt.Sprint(p.larger())))
	}
	for _, look := range []func(context.Context) error{
		func(ctx context.Context) error { return e.deadLeaves(ctx, p) }, e.leafOwners, e.publications,
	} {
		if err = look(ctx); err != nil {
			return err
		}
	}
	return nil
}

// leavesAhead says when there will be no leaf for the next ids.
func (e *doctorRun) leavesAhead(p partitions) {
	if !p.Known {
		ids := e.db.Render("{outbox_id_seq}")
		e.find("leaves_ahead", Warning, fmt.Sprintf("it could not be checked whether leaves are ahead of the ids: role %s "+
			"may not read sequence %s", p.Role, ids), "GRANT SELECT ON SEQUENCE "+ids+" TO "+p.Role)
		return
	}
	ahead := p.Ahead()
	if ahead >= fewAhead {
		return
	}
	s, evidence := Warning, fmt.Sprintf("1 leaf is ahead of the last id, %d", p.Last)
	if ahead == 0 {
		s, evidence = Critical, fmt.Sprintf("no leaf is ahead of the last id, %d", p.Last)
	}
	if end := p.end(); end > p.Last {
		evidence += fmt.Sprintf(": %d ids are left, then the default partition takes the messages", end-p.Last)
	} else {
		evidence += ": the default partition takes the messages"
	}
	cure := "as " + p.Owner + ", make leaves, and do so every hour" + e.roll(p)
	e.find("leaves_ahead", s, evidence, cure)
}

// defaultLeaf says what the default has. What is old there a roll deletes one by one.
func (e *doctorRun) defaultLeaf(p partitions, rows int64) {
	if rows == 0 {
		return
	}
	s, cure := Info, "nothing: a roll deletes them when they are old"
	if rows > filledDefault && p.Ahead() < fewAhead {
		s, cure = Warning, "as "+p.Owner+", make leaves, and do so every hour"
	}
	n := Count{N: min(rows, filledDefault), More: rows > filledDefault}
	e.find("leaves_default", s, fmt.Sprintf("partition %s has %s that had no leaf", p.Default.SQL, n.messages()),
		cure+e.roll(p))
}

// messages writes how many there are.
func (c Count) messages() string {
	if c.N == 1 && !c.More {
		return "1 message"
	}
	return c.String() + " messages"
}

// rolled says whether the outbox is rolled, by a role that may.
func (e *doctorRun) rolled(p partitions) {
	if p.blind {
		return
	}
	due := slices.ContainsFunc(p.list, func(l LeafStats) bool { return l.State == LeafDue })
	last := slices.IndexFunc(p.rolls, func(r pastRoll) bool { return r.ended })
	if late := last < 0 || p.rolls[last].age > rollLate; late && (due || p.Known && p.short()) {
		evidence := "the audit log has no roll of the outbox"
		if last >= 0 {
			evidence = fmt.Sprintf("the outbox was rolled last %s ago", span(p.rolls[last].age))
		}
		if due {
			evidence += fmt.Sprintf(", and a leaf has only messages that were settled more than %s ago", p.keep)
		} else {
			evidence += fmt.Sprintf(", and the leaves have room for %d more ids: a roll makes it at least %d",
				max(0, p.end()-p.Last), leavesAhead*p.size())
		}
		if len(p.rolls) > 0 && !p.rolls[0].ended && p.rolls[0].outcome != "" {
			evidence += "; the last try failed: " + p.rolls[0].outcome
		}
		e.find("roll", Warning, evidence, "run it every hour, as "+p.Owner+e.roll(p))
	}
	if len(p.rolls) > 0 && !slices.ContainsFunc(p.rolls, func(r pastRoll) bool {
		return r.role == p.rolls[0].role && r.grant == "" // it may become the owner by a setting, and did
	}) {
		e.find("roll_owner", Warning, fmt.Sprintf("role %s, which rolled the outbox last, does not own table %s: "+
			"it cannot make, empty or drop leaves", sqltext.Quote(p.rolls[0].role), e.db.Render("{outbox}")),
			"roll as "+p.Owner+", or have that role act for it: "+p.rolls[0].grant)
	}
}

// roll is the command, with the retention that was used, if one was.
func (e *doctorRun) roll(p partitions, words ...string) string {
	if p.kept {
		words = append(words, "--retention", p.keep.String())
	}
	return e.command(append([]string{"roll"}, words...)...)
}

// leafOwners looks for leaves of another owner, who alone may empty them.
func (e *doctorRun) leafOwners(ctx context.Context) error {
	var leaf, owner string
	return e.rows(ctx, []any{&leaf, &owner}, func() {
		e.find("roll_owner", Warning, fmt.Sprintf("partition %s does not belong to the owner of the outbox, %s: a roll "+
			"cannot empty it", leaf, owner), "give it to that role: ALTER TABLE "+leaf+" OWNER TO "+owner)
	}, sqltext.LeafOwners)
}

// publications looks for those that send the outbox.
func (e *doctorRun) publications(ctx context.Context) error {
	var name, tables string
	var whole bool
	return e.rows(ctx, []any{&name, &whole, &tables}, func() {
		evidence := fmt.Sprintf("publication %s sends the leaves of the outbox: a subscriber needs a table for each, and "+
			"messages that are put back arrive a second time", sqltext.Quote(name))
		if whole {
			evidence = fmt.Sprintf("publication %s sends the outbox as one table: that a leaf was emptied is not sent, and "+
				"messages that are put back arrive a second time", sqltext.Quote(name))
		}
		cure := "it is of all tables, or of a schema: make it again with a list of tables, without the outbox"
		if tables != "" {
			cure = "take it out: ALTER PUBLICATION " + sqltext.Quote(name) + " DROP TABLE " + tables
		}
		e.find("leaves_published", Warning, evidence, cure)
	}, sqltext.LeafPublications)
}

// end is the first id above all leaves.
func (p partitions) end() int64 {
	if n := len(p.Leaves); n > 0 {
		return p.Leaves[n-1].To
	}
	return 0
}

// short says whether a roll would make a leaf.
func (p partitions) short() bool {
	end := p.end()
	return end < math.MaxInt64 && end-p.Last < leavesAhead*p.size()
}

// size is how many ids a leaf has.
func (p partitions) size() int64 {
	if n := p.Size(); n > 0 {
		return n
	}
	return usualLeaf
}

// usualLeaf is the size of a leaf where none says it.
const usualLeaf = 4_000_000

// larger is a size with which there would be eight leaves.
func (p partitions) larger() int64 { return p.size() * int64(len(p.Leaves)) / 8 }
