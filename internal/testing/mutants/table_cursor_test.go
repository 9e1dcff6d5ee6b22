package mutants

// cursorMutants are mutants of package cursor: which rows are read, and from where.
var cursorMutants = []Mutant{
	{
		Name: "W1", File: "cursor/move.go", Trouble: "whatever", First: 0,
		Breaks: "a lane that was full counts as read to its end",
		Old: `		if l.full {
			l.cursor, p.More = to, true // even`,
		New: `		if false {
			l.cursor, p.More = to, true // even`,
	},
	{
		Name: "W2", File: "cursor/move.go", Trouble: "whatever", First: 1,
		Breaks: "a lane that returned as many rows as requested counts as read to its end",
		Old:    "a.Counts[n] >= r.limit(n, from)",
		New:    "a.Counts[n] > r.limit(n, from)",
	},
	{
		Name: "W3", File: "cursor/tracker.go", Trouble: "whatever", First: 2,
		Breaks: "transactions above the snapshot's xmax are not tracked",
		Old:    "if from < s.NextXid {",
		New:    "if false {",
	},
	{
		Name: "W4", File: "cursor/tracker.go", Trouble: "whatever", First: 2,
		Breaks: "a new transaction is bound to the sequence of this read, not the previous one",
		Old:    `	xids := make(map[int64]int64, len(s.InProgress))`,
		New: `	t.seq = s.Seq
	xids := make(map[int64]int64, len(s.InProgress))`,
	},
	{
		Name: "W5", File: "cursor/tracker.go", Trouble: "whatever", First: 2,
		Breaks: "a bound is raised without the consent of the next read",
		Old:    "t.nextBounds[xid] = t.seq",
		New:    "t.xids[xid] = t.seq",
	},
	{
		Name: "W6", File: "cursor/tracker.go", Trouble: "whatever", First: 0,
		Breaks: "merged segments take the higher bound",
		Old:    "min(a.bound, b.bound)",
		New:    "max(a.bound, b.bound)",
		Strike: "no schedule has 64 segments; TestTrackerMergesSegmentsDownwards has",
	},
	{
		Name: "W7", File: "cursor/cursors.go", Trouble: "operators", First: 0,
		Breaks: "a sequence that was set back is not a new incarnation",
		Old:    "(a.Incarnation != before || a.Snapshot.Seq < c.tracker.seq)",
		New:    "a.Incarnation != before",
		Strike: "the model sets no sequence back without a new incarnation of the server; TestLives does",
	},
	{
		Name: "W9", File: "cursor/move.go", Trouble: "whatever", First: 3,
		Breaks: "in a single range only the rows of one lane are counted",
		Old:    "rows, last = rows+a.Counts[n], max(last, a.Last[n])",
		New:    "rows, last = a.Counts[n], max(last, a.Last[n])",
	},
	{
		Name: "W10", File: "cursor/move.go", Trouble: "whatever", First: 2,
		Breaks: "lanes continue from the highest cursor, not the lowest",
		Old: `	lowest := c.lowest()
	for n := range c.lanes {`,
		New: `	lowest := c.lowest()
	for _, l := range c.lanes {
		lowest = max(lowest, l.cursor)
	}
	for n := range c.lanes {`,
	},
	{
		Name: "W11", File: "cursor/move.go", Trouble: "theft", First: 0,
		Breaks: "a result moves the cursor of another epoch",
		Old:    "if l.epoch == 0 || l.epoch != r.Epochs[n] {",
		New:    "if l.epoch == 0 {",
		Strike: "no lane starts during a read, so an answer is of the lane's epoch, or the lane is gone",
	},
	{
		Name: "W12", File: "cursor/cursors.go", Trouble: "crashes", First: 96,
		Breaks: "a new incarnation keeps the tracked transactions",
		Old:    "*c = Cursors{limiter: c.limiter, resets: c.resets + 1}",
		New:    "*c = Cursors{limiter: c.limiter, tracker: c.tracker, resets: c.resets + 1}",
	},
	{
		Name: "W13", File: "cursor/cursors.go", Trouble: "whatever", First: 0,
		Breaks: "no read tracks transactions",
		Old:    `	r.Xids, r.Bounds, r.Los, r.SegmentBounds = c.tracker.args()`,
		New:    `	_, _, _, _ = c.tracker.args()`,
	},
	{
		Name: "W14", File: "cursor/tracker.go", Trouble: "whatever", First: 2,
		Breaks: "a transaction in progress that was tracked gets a new bound",
		Old:    `	if bound, ok := t.xids[xid]; ok {`,
		New:    `	if bound, ok := t.xids[xid]; ok && false {`,
	},
	{
		Name: "W15", File: "cursor/move.go", Trouble: "whatever", First: 33,
		Breaks: "a lane is read past rows that had no room",
		Old:    "if cut := a.Cut[n]; cut > 0 {",
		New:    "if cut := a.Cut[n]; cut > 0 && false {",
	},
	{
		Name: "W16", File: "cursor/move.go", Trouble: "whatever", Test: "TestNoRoom", In: "cursor",
		Breaks: "a lane without room does not return to where the read began",
		Old: `			l.cursor, p.More = from, true
			continue`,
		New: `			p.More = true
			continue`,
	},
	{
		Name: "W17", File: "cursor/move.go", Trouble: "whatever", First: 2,
		Breaks: "a lane that a range did not reach counts as read to its end",
		Old:    "if end-from > r.Span {",
		New:    "if false {",
	},
	{
		Name: "W18", File: "cursor/move.go", Trouble: "crashes", First: 0,
		Breaks: "the end of a read is the sequence even where a cursor is higher",
		Old:    "end := max(r.Cursors[n], a.Snapshot.Seq)",
		New:    "end := a.Snapshot.Seq",
		Strike: "a cursor is never above the sequence: that is a new incarnation",
	},
	{
		Name: "W19", File: "cursor/move.go", Trouble: "whatever", First: 10,
		Breaks: "a lane that is read again and was full counts as read to its end",
		Old: `	if start < r.Cursors[n] {
		return r.Limits[n] + r.Rewound[n]`,
		New: `	if start < r.Cursors[n] {
		return r.Limits[n] + r.Rewound[n] + 1`,
	},
	{
		Name: "W20", File: "cursor/cursors.go", Trouble: "crashes", Test: "TestFirstReadInAnotherIncarnation", In: "cursor",
		Breaks: "keys are blocked by rows of another incarnation of the server",
		Old:    "cmp.Or(c.incarnation, c.loaded)",
		New:    "cmp.Or(c.incarnation)",
	},
}
