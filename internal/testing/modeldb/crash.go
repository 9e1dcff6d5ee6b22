package modeldb

import "slices"

// Life returns the incarnation of the server and the sequence, 0 = unnamed: ids keep their meaning within an
// incarnation.
func (d *DB) Life() int {
	if !d.named {
		return 0
	}
	return d.life
}

// CreateIncarnation names the incarnation. It takes a transaction id if there was no name.
func (d *DB) CreateIncarnation() {
	if !d.named {
		d.named = true
		d.one(func() {})
	}
}

// Commits returns how many commits a crash may lose.
func (d *DB) Commits() int { return len(d.commits) }

// Durable marks all commits as flushed to disk.
func (d *DB) Durable() { d.commits = nil }

// Lose undoes the last n commits, the first half of a crash; the remaining state may then be compared.
func (d *DB) Lose(n int) {
	kept := len(d.commits) - n
	for _, c := range slices.Backward(d.commits[kept:]) {
		c.undo()
	}
	d.commits = d.commits[:kept]
}

// Crash ends all transactions and the incarnation. Ids continue from the position in the server's log: transaction ids
// may be assigned again, and row ids may be skipped.
func (d *DB) Crash(seq, next int64) {
	d.open, d.commits = nil, nil
	clear(d.locks)
	d.seq, d.next, d.latest = seq, next, next-1
	d.life, d.named = d.life+1, false
}
