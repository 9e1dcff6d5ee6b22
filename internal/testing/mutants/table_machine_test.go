package mutants

// machineMutants are mutants of packages machine and lease: state shared by goroutines.
var machineMutants = []Mutant{
	{
		Name: "L4", File: "machine/lanes.go", Trouble: "theft", First: 81,
		Breaks: "lanes that are another's are not forgotten",
		Old: `	m.lose(p.Lost)
`,
		New: "",
	},
	{
		Name: "L5", File: "lease/lease.go", Trouble: "whatever", First: 0,
		Breaks: "who leaves takes its lanes again",
		Old:    "case !have && v.Stopping:",
		New:    "case false:",
	},
	{
		Name: "L6", File: "lease/lease.go", Trouble: "whatever", First: 5,
		Breaks: "who leaves has a share",
		Old: `	if v.Stopping {
		return 0`,
		New: `	if false {
		return 0`,
	},
	{
		Name: "L9", File: "machine/lanes.go", Trouble: "whatever", First: 0,
		Breaks: "a lane is released before it is free",
		Old: `			m.lanes[t.Lane].State = Handing
			m.window.Drop(t.Lane)`,
		New: `			m.lanes[t.Lane].State = Handing
			m.free = append(m.free, t)
			m.window.Drop(t.Lane)`,
	},
	{
		Name: "L11", File: "lease/lease.go", Trouble: "crashes", First: 1,
		Breaks: "a lane that is ours in the database and not in memory is never taken up",
		Old:    `			p.Retake = append(p.Retake, l.Term)`,
		New:    `			_ = l.Term`,
	},
	{
		Name: "L12", File: "lease/lease.go", Trouble: "theft", First: 0,
		Breaks: "a lane of another epoch counts as held",
		Old:    "have && (l.Owner != v.Me || l.Epoch != held.Epoch)",
		New:    "have && l.Owner != v.Me",
		Strike: "the next read finds the lane not owned under that epoch: it costs a read",
	},
	{
		Name: "L13", File: "lease/lease.go", Trouble: "whatever", First: 0,
		Breaks: "a lane is taken whose owner is alive",
		Old: `			if !l.Alive {
`,
		New: `			if true {
`,
	},
	{
		Name: "L14", File: "lease/lease.go", Trouble: "whatever", First: 37,
		Breaks: "no lane is handed back to others",
		Old:    "surplus > 0 {",
		New:    "false {",
	},
	{
		Name: "L15", File: "lease/lease.go", Trouble: "whatever", First: 0,
		Breaks: "nobody takes lanes that are free",
		Old:    "p.Take = free[:min(max(0, p.Share-have), len(free))]",
		New:    "p.Take = nil",
	},
	{
		Name: "M1", File: "machine/publish.go", Trouble: "whatever", First: 17,
		Breaks: "a publish starts at the very end of the lease",
		Old:    "if !now.Before(m.leaseUntil) {",
		New:    "if now.After(m.leaseUntil) {",
	},
	{
		Name: "M2", File: "machine/machine.go", Trouble: "whatever", First: 0,
		Breaks: "workers are started without a lease",
		Old:    "if f.Publish > m.starting && now.Before(m.leaseUntil) {",
		New:    "if f.Publish > m.starting {",
	},
	{
		Name: "M3", File: "machine/reads.go", Trouble: "theft", First: 22,
		Breaks: "a lane starts that was lost while it loaded",
		Old:    "if m.lanes[t.Lane] != (Lane{Epoch: t.Epoch, State: Taken}) {",
		New:    "if m.stopping {",
	},
	{
		Name: "M5", File: "machine/reads.go", Trouble: "crashes", First: 0,
		Breaks: "a new life keeps the lanes",
		Old: `		m.lose(m.All())
		m.effects`,
		New: `		m.effects`,
	},
	{
		Name: "M6", File: "machine/reads.go", Trouble: "crashes", First: 122,
		Breaks: "an answer of a new life is taken over",
		Old: `		m.board.ReadFailed(now, r.Board)
		return true`,
		New:    `		return false`,
		Strike: "all lanes are lost then, and the board takes no row of a lane that was lost",
	},
	{
		Name: "M7", File: "machine/reads.go", Trouble: "theft", First: 0,
		Breaks: "a lane that the database gave to another is read on",
		Old: `		case !a.Owned[n]:
			m.lose([]lanes.Term{t})
`,
		New: "",
	},
	{
		Name: "M9", File: "machine/reads.go", Trouble: "whatever", First: 0,
		Breaks: "what was asked for during a read is forgotten at its end",
		Old: `	m.failing, m.reads.asking = time.Time{}, time.Time{}
	m.findQuiet`,
		New: `	m.failing, m.reads.asking, m.reads.asked = time.Time{}, time.Time{}, false
	m.findQuiet`,
		Strike: "the next poll asks again: it costs a PollInterval",
	},
	{
		Name: "M11", File: "machine/machine.go", Trouble: "whatever", First: 0,
		Breaks: "a free lane wakes nobody",
		Old: `		m.free = append(m.free, f.Free...)
		e.Wake |= WakeKeeper`,
		New: `		m.free = append(m.free, f.Free...)`,
	},
	{
		Name: "M12", File: "machine/drains.go", Trouble: "drains", First: 27,
		Breaks: "a drain is answered by a read that had begun before",
		Old:    "if d.after >= read || ",
		New:    "if d.after > read || ",
	},
	{
		Name: "M13", File: "machine/lanes.go", Trouble: "drains", First: 0,
		Breaks: "a drain is answered while lanes load",
		Old: `		case l.State != Reading:
			return false
`,
		New: "",
	},
	{
		Name: "M14", File: "machine/settle.go", Trouble: "theft", First: 8,
		Breaks: "a failure that was fenced does not end the term",
		Old:    "o.Kind == board.Fenced && m.lanes",
		New:    "false && m.lanes",
	},
	{
		Name: "M15", File: "machine/reads.go", Trouble: "whatever", First: 2,
		Breaks: "a lane starts without its blocked keys",
		Old:    `	m.board.LaneTaken(now, lane)`,
		New:    `	m.board.LaneTaken(now, board.NewTaken(now, t, nil))`,
	},
	{
		Name: "M16", File: "machine/machine.go", Trouble: "whatever", First: 0,
		Breaks: "results wake nobody",
		Old:    `		e.Wake |= WakeSettler`,
		New:    `		e.Wake |= 0`,
	},
	{
		Name: "M17", File: "machine/machine.go", Trouble: "whatever", First: 0,
		Breaks: "no worker is started",
		Old:    `		e.Start, m.starting = f.Publish-m.starting, f.Publish`,
		New:    `		m.starting = f.Publish`,
	},
	{
		Name: "M18", File: "machine/publish.go", Trouble: "whatever", First: 0,
		Breaks: "a worker that was started is counted for ever",
		Old:    `		m.starting--`,
		New:    `		m.starting += 0`,
	},
	{
		Name: "M19", File: "machine/machine.go", Trouble: "whatever", First: 0,
		Breaks: "the timer is not woken",
		Old: `		m.tickAt = tick
		e.Wake |= WakeTimer`,
		New: `		m.tickAt = tick`,
	},
	{
		Name: "M20", File: "machine/machine.go", Trouble: "whatever", First: 0,
		Breaks: "what the board wants wakes no read",
		Old: `		e.Wake |= WakeReader
	}
	if !tick`,
		New: `	}
	if !tick`,
	},
	{
		Name: "M21", File: "machine/lanes.go", Trouble: "whatever", First: 0,
		Breaks: "a lane handed back is read on",
		Old: `			m.window.Drop(t.Lane)
			m.board.HandBack(t)`,
		New: `			m.board.HandBack(t)`,
	},
	{
		Name: "M22", File: "machine/lanes.go", Trouble: "theft", First: 2,
		Breaks: "the board hears nothing of lost lanes",
		Old: `	m.board.LanesLost(list...)
`,
		New: "",
	},
	{
		Name: "M23", File: "machine/machine.go", Trouble: "whatever", First: 5,
		Breaks: "a stop answers no drain",
		Old: `	m.endDrains(now, m.reads.begun+1, Drained{Closed: true})
`,
		New: "",
	},
	{
		Name: "M24", File: "machine/reads.go", Trouble: "whatever", First: 0,
		Breaks: "a drain is answered though rows are new",
		Old:    "quiet = quiet && added == 0 && !m.reads.more && m.complete()",
		New:    "quiet = quiet && !m.reads.more && m.complete()",
		Strike: "what was added is in memory, so the board is not quiet, or it was published and settled since",
	},
	{
		Name: "M25", File: "machine/reads.go", Trouble: "drains", First: 11,
		Breaks: "a drain is answered though more is to be read",
		Old:    "quiet = quiet && added == 0 && !m.reads.more && m.complete()",
		New:    "quiet = quiet && added == 0 && m.complete()",
	},
	{
		Name: "M26", File: "machine/reads.go", Trouble: "drains", First: 0,
		Breaks: "a drain is answered though lanes are missing",
		Old:    "quiet = quiet && added == 0 && !m.reads.more && m.complete()",
		New:    "quiet = quiet && added == 0 && !m.reads.more",
	},
	{
		Name: "M27", File: "machine/reads.go", Trouble: "whatever", First: 0,
		Breaks: "what failed is read on as if all had been read",
		Old: `		m.reads.more = true
		m.window.Failed`,
		New:    `		m.window.Failed`,
		Strike: "the next poll reads on: it costs a PollInterval",
	},
	{
		Name: "M28", File: "machine/lanes.go", Trouble: "whatever", First: 0,
		Breaks: "a lane that was given back is given back again",
		Old: `	m.free = left
`,
		New: "",
	},
	{
		Name: "M30", File: "machine/reads.go", Trouble: "crashes", First: 25,
		Breaks: "what was asked of a read in a new life stays asked for",
		Old: `		m.board.ReadFailed(now, r.Board)
		return true`,
		New: `		return true`,
	},
	{
		Name: "M31", File: "machine/drains.go", Trouble: "drains", First: 1,
		Breaks: "a drain is answered while another member may be dead",
		Old:    "(d.others && m.silent || m.waitsForHung(now, &d))",
		New:    "m.waitsForHung(now, &d)",
	},
	{
		Name: "M38", File: "machine/drains.go", In: "..", Test: "TestDrainWaitsForCallsThatTimedOut",
		Breaks: "a drain is answered while a call that timed out may succeed",
		Old:    "if m.Hung() == 0 {",
		New:    "if true {",
	},
	{
		Name: "M32", File: "machine/lanes.go", Trouble: "drains", First: 0,
		Breaks: "a member that turns out to live has no drain answered",
		Old:    "if m.silent && !silent && len(m.drains) > 0 {",
		New:    "if false {",
		Strike: "the next poll answers it: it costs a PollInterval",
	},
	{
		Name: "M33", File: "machine/lanes.go", Trouble: "drains", First: 0,
		Breaks: "a member counts as dead that was so once",
		Old:    "m.silent = silent",
		New:    "m.silent = m.silent || silent",
		Strike: "no schedule waits for the answer to a Drain; TestDrainWaitsForASilentMember does",
	},
	{
		Name: "S8", File: "machine/walks.go", Trouble: "operators", First: 0,
		Breaks: "a sweep goes beyond the mark",
		Old:    "p.Upto = min(mark, p.Cursor+span)",
		New:    "p.Upto = p.Cursor + span",
		Strike: "the board takes no orphan above the mark: B14",
	},
	{
		Name: "S9", File: "machine/walks.go", Trouble: "outage", First: 43,
		Breaks: "nobody sees that an operator settled what a key waits for",
		Old: `	m.board.FirstsGone(now, t, gone)
`,
		New: "",
	},
	{
		Name: "S10", File: "machine/walks.go", Trouble: "operators", First: 7,
		Breaks: "nobody sees that an operator settled what blocks a key",
		Old: `		m.board.HeadsSeen(now, begun, p.Term, p.Cursor, to, page)
`,
		New: "",
	},
	{
		Name: "S13", File: "machine/settle.go", Trouble: "whatever", First: 9,
		Breaks: "results that were given up are counted for ever",
		Old: `	m.board.Unsettled(published, failed)
`,
		New: "",
	},
	{
		Name: "M34", File: "machine/reads.go", Trouble: "drains", Test: "TestMuchThatFellDueDelaysNoPoll", In: "machine",
		Breaks: "the look for much that fell due waits for the next poll",
		Old:    "if m.reads.manyDue {",
		New:    "if false {",
	},
}
