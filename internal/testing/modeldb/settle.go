package modeldb

import "slices"

// Settled is a message that was published.
type Settled struct {
	ID       int64
	Identity string // its uuid with its generation
}

// SettlePublished marks messages published, or deletes them. life is the incarnation in which all of them were read, 0
// = different ones; seq was then the position of the sequence.
func (d *DB) SettlePublished(list []Settled, life int, seq int64, remove bool) (blocked bool) {
	var rows []*Row
	for _, s := range list {
		r := d.find(s.ID)
		if r != nil && (remove || !r.Published) && (d.first(r, life, seq) || r.identity() == s.Identity) {
			rows = append(rows, r)
		}
	}
	return d.settle(rows, remove)
}

// first reports whether an id still refers to the row that was read: in the same incarnation, and not requeued by an
// operator.
func (d *DB) first(r *Row, life int, seq int64) bool {
	return (r.Due == 0 || r.Generation == "") && life != 0 && life == d.Life() && d.seq >= seq
}

func (d *DB) settle(rows []*Row, remove bool) (blocked bool) {
	if d.anyLocked(rows) {
		return true
	}
	d.change(rows, remove, func(r *Row) { r.Published, r.Dead = true, false })
	return false
}

// SettleSpan settles all ids from lo to hi except out, and returns their number.
func (d *DB) SettleSpan(lo, hi int64, life int, seq int64, out []int64, remove bool) (n int64, blocked bool) {
	var rows []*Row
	for _, r := range d.rows {
		if r.ID >= lo && r.ID <= hi && !slices.Contains(out, r.ID) && (remove || !r.Published) && d.first(r, life, seq) {
			rows = append(rows, r)
		}
	}
	return int64(len(rows)), d.settle(rows, remove)
}

// SettleUnlocked settles by UUID the messages that no transaction has locked, and returns the others.
func (d *DB) SettleUnlocked(list []Settled, remove bool) (locked []int64) {
	var free []*Row
	for _, s := range list {
		switch r := d.find(s.ID); {
		case r == nil || r.Published || r.identity() != s.Identity:
		case d.locks[r.ID] != nil:
			locked = append(locked, r.ID)
		default:
			free = append(free, r)
		}
	}
	d.settle(free, remove)
	return locked
}

// Failed is a failed attempt.
type Failed struct {
	ID        int64
	Identity  string
	Lane      int16
	Epoch     int64
	Attempts  int
	Delay     int64 // relative to DB.Now; negative = no wait
	Permanent bool
}

// SettleFailed records failures, at most one per message, and returns the outcome of each: "" means that another owner
// has settled it. The locks on lanes take a transaction id even if nothing is recorded.
func (d *DB) SettleFailed(owner string, list []Failed, most int) (outcomes []string) {
	outcomes = make([]string, len(list))
	var rows []*Row
	changes := map[*Row]Failed{}
	fenced := true
	for i, f := range list {
		lane := d.lanes[f.Lane]
		mine := d.created && lane.Owner == owner
		if fenced = fenced && !mine; !mine || lane.Epoch != f.Epoch {
			outcomes[i] = "fenced"
			continue
		}
		r := d.find(f.ID)
		switch {
		case r == nil || r.Published || !startsWith(f.Identity, r.UUID):
		case r.identity() != f.Identity:
			outcomes[i] = "waiting" // an operator has requeued it
		case r.Dead:
			outcomes[i] = "dead"
		case d.locks[r.ID] != nil:
			outcomes[i] = "locked"
		default:
			outcomes[i] = "waiting"
			if f.Permanent || f.Attempts >= most {
				outcomes[i] = "dead"
			}
			rows, changes[r] = append(rows, r), f
		}
	}
	d.change(rows, false, func(r *Row) {
		f := changes[r]
		r.Attempts, r.Untried = f.Attempts, false
		r.Due, r.Dead = d.Now+f.Delay, f.Permanent || f.Attempts >= most
	})
	if len(rows) == 0 && !fenced {
		d.one(func() {})
	}
	return outcomes
}

func startsWith(s, prefix string) bool { return len(s) >= len(prefix) && s[:len(prefix)] == prefix }
