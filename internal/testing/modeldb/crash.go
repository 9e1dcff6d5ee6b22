package modeldb

import "slices"

// Life names the life of the server and the sequence, 0 = it has no name: ids mean what they meant in the same life.
func (d *DB) Life() int {
	if !d.named {
		return 0
	}
	return d.life
}

// BeginLife gives a life its name. It takes a transaction id if it had none.
func (d *DB) BeginLife() {
	if !d.named {
		d.named = true
		d.one(func() {})
	}
}

// Commits is how many commits a crash may lose.
func (d *DB) Commits() int { return len(d.commits) }

// Durable says that all commits are on disk.
func (d *DB) Durable() { d.commits = nil }

// Lose takes the last commits back, as a crash does, and is the first half of one: what is left may be compared.
func (d *DB) Lose(n int) {
	kept := len(d.commits) - n
	for _, c := range slices.Backward(d.commits[kept:]) {
		c.undo()
	}
	d.commits = d.commits[:kept]
}

// Crash ends all transactions, and the life of the server. Ids go on from where its log says: they may be handed out
// again, and row ids may be passed by.
func (d *DB) Crash(seq, next int64) {
	d.open, d.commits = nil, nil
	clear(d.locks)
	d.seq, d.next, d.latest = seq, next, next-1
	d.life, d.named = d.life+1, false
}
