package mutants

// coordinatorMutants are mutants of packages coordinator and lease: state shared by goroutines.
var coordinatorMutants = []Mutant{
	{
		Name: "L4", File: "coordinator/lanes.go", Trouble: "theft", First: 81,
		Breaks: "lanes that are another's are not forgotten",
		Old: `	c.lose(p.Lost)
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
		Name: "L9", File: "coordinator/lanes.go", Trouble: "whatever", First: 0,
		Breaks: "a lane is released before it is free",
		Old: `			c.lanes[t.Lane].State = Releasing
			c.cursors.Drop(t.Lane)`,
		New: `			c.lanes[t.Lane].State = Releasing
			c.free = append(c.free, t)
			c.cursors.Drop(t.Lane)`,
	},
	{
		Name: "L11", File: "lease/lease.go", Trouble: "crashes", First: 1,
		Breaks: "a lane that is ours in the database and not in memory is never taken up",
		Old:    `			p.Retake = append(p.Retake, l.Assignment)`,
		New:    `			_ = l.Assignment`,
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
		Breaks: "no lane is released to others",
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
		Name: "M1", File: "coordinator/publish.go", Trouble: "whatever", First: 17,
		Breaks: "a publish starts at the very end of the lease",
		Old:    "if !now.Before(c.leaseUntil) {",
		New:    "if now.After(c.leaseUntil) {",
	},
	{
		Name: "M2", File: "coordinator/coordinator.go", Trouble: "whatever", First: 0,
		Breaks: "workers are started without a lease",
		Old:    "if f.Publish > c.starting && now.Before(c.leaseUntil) {",
		New:    "if f.Publish > c.starting {",
	},
	{
		Name: "M3", File: "coordinator/reads.go", Trouble: "theft", First: 22,
		Breaks: "a lane starts that was lost while it loaded",
		Old:    "if c.lanes[t.Lane] != (Lane{Epoch: t.Epoch, State: Taken}) {",
		New:    "if c.stopping {",
	},
	{
		Name: "M5", File: "coordinator/reads.go", Trouble: "crashes", First: 0,
		Breaks: "a new incarnation keeps the lanes",
		Old: `		c.lose(c.Assignments())
		c.effects`,
		New: `		c.effects`,
	},
	{
		Name: "M6", File: "coordinator/reads.go", Trouble: "crashes", First: 122,
		Breaks: "an answer of a new incarnation is taken over",
		Old: `		c.dispatcher.ReadFailed(now, r.Dispatch)
		return true`,
		New:    `		return false`,
		Strike: "all lanes are lost then, and the dispatcher takes no row of a lane that was lost",
	},
	{
		Name: "M7", File: "coordinator/reads.go", Trouble: "theft", First: 0,
		Breaks: "a lane that the database gave to another is read on",
		Old: `		case !a.Owned[n]:
			c.lose([]lanes.Assignment{t})
`,
		New: "",
	},
	{
		Name: "M9", File: "coordinator/reads.go", Trouble: "whatever", First: 0,
		Breaks: "what was asked for during a read is forgotten at its end",
		Old: `	c.failing, c.reads.inFlightSince = time.Time{}, time.Time{}
	c.endDrainsIfQuiet`,
		New: `	c.failing, c.reads.inFlightSince, c.reads.wanted = time.Time{}, time.Time{}, false
	c.endDrainsIfQuiet`,
		Strike: "the next poll asks again: it costs a PollInterval",
	},
	{
		Name: "M11", File: "coordinator/coordinator.go", Trouble: "whatever", First: 0,
		Breaks: "a free lane wakes nobody",
		Old: `		c.free = append(c.free, f.Free...)
		e.Wake |= WakeRebalancer`,
		New: `		c.free = append(c.free, f.Free...)`,
	},
	{
		Name: "M13", File: "coordinator/lanes.go", Trouble: "drains", First: 2,
		Breaks: "a drain is answered while lanes load",
		Old: `		case l.State != Reading:
			return false
`,
		New: "",
	},
	{
		Name: "M14", File: "coordinator/settle.go", Trouble: "theft", First: 8,
		Breaks: "a failure that was fenced does not end the assignment",
		Old:    "o.Kind == dispatch.Fenced && c.lanes",
		New:    "false && c.lanes",
	},
	{
		Name: "M15", File: "coordinator/reads.go", Trouble: "whatever", First: 2,
		Breaks: "a lane starts without its blocked keys",
		Old:    `	c.dispatcher.LaneTaken(now, lane)`,
		New:    `	c.dispatcher.LaneTaken(now, dispatch.NewTakenLane(now, t, nil))`,
	},
	{
		Name: "M16", File: "coordinator/coordinator.go", Trouble: "whatever", First: 0,
		Breaks: "results wake nobody",
		Old:    `		e.Wake |= WakeSettler`,
		New:    `		e.Wake |= 0`,
	},
	{
		Name: "M17", File: "coordinator/coordinator.go", Trouble: "whatever", First: 0,
		Breaks: "no worker is started",
		Old:    `		e.Start, c.starting = f.Publish-c.starting, f.Publish`,
		New:    `		c.starting = f.Publish`,
	},
	{
		Name: "M18", File: "coordinator/publish.go", Trouble: "whatever", First: 0,
		Breaks: "a worker that was started is counted for ever",
		Old:    `		c.starting--`,
		New:    `		c.starting += 0`,
	},
	{
		Name: "M19", File: "coordinator/coordinator.go", Trouble: "whatever", First: 0,
		Breaks: "the timer is not woken",
		Old: `		c.tickAt = tick
		e.Wake |= WakeTimer`,
		New: `		c.tickAt = tick`,
	},
	{
		Name: "M20", File: "coordinator/coordinator.go", Trouble: "whatever", First: 0,
		Breaks: "what the dispatcher wants wakes no read",
		Old: `		e.Wake |= WakeReader
	}
	if !tick`,
		New: `	}
	if !tick`,
	},
	{
		Name: "M21", File: "coordinator/lanes.go", Trouble: "whatever", First: 0,
		Breaks: "a lane being released is read on",
		Old: `			c.cursors.Drop(t.Lane)
			c.dispatcher.Release(t)`,
		New: `			c.dispatcher.Release(t)`,
	},
	{
		Name: "M22", File: "coordinator/lanes.go", Trouble: "theft", First: 2,
		Breaks: "the dispatcher is not told of lost lanes",
		Old: `	c.dispatcher.LanesLost(list...)
`,
		New: "",
	},
	{
		Name: "M23", File: "coordinator/coordinator.go", Trouble: "whatever", First: 5,
		Breaks: "a stop answers no drain",
		Old: `	c.endDrains(now, Drained{Closed: true})
`,
		New: "",
	},
	{
		Name: "M24", File: "coordinator/reads.go", Trouble: "whatever", First: 0,
		Breaks: "a drain is answered though rows are new",
		Old:    "quiet = quiet && added == 0 && !c.reads.more && c.readsShare()",
		New:    "quiet = quiet && !c.reads.more && c.readsShare()",
		Strike: "what was added is in memory, so the dispatcher is not quiet, or it was published and settled since",
	},
	{
		Name: "M25", File: "coordinator/reads.go", Trouble: "drains", First: 4,
		Breaks: "a drain is answered though more is to be read",
		Old:    "quiet = quiet && added == 0 && !c.reads.more && c.readsShare()",
		New:    "quiet = quiet && added == 0 && c.readsShare()",
	},
	{
		Name: "M26", File: "coordinator/reads.go", Trouble: "drains", First: 0,
		Breaks: "a drain is answered though lanes are missing",
		Old:    "quiet = quiet && added == 0 && !c.reads.more && c.readsShare()",
		New:    "quiet = quiet && added == 0 && !c.reads.more",
	},
	{
		Name: "M27", File: "coordinator/reads.go", Trouble: "whatever", First: 0,
		Breaks: "what failed is read on as if all had been read",
		Old: `		c.reads.more = true
		c.cursors.Failed`,
		New:    `		c.cursors.Failed`,
		Strike: "the next poll reads on: it costs a PollInterval",
	},
	{
		Name: "M28", File: "coordinator/lanes.go", Trouble: "whatever", First: 0,
		Breaks: "a lane that was given back is given back again",
		Old: `	c.free = left
`,
		New: "",
	},
	{
		Name: "M30", File: "coordinator/reads.go", Trouble: "crashes", First: 25,
		Breaks: "what was asked of a read in a new incarnation stays asked for",
		Old: `		c.dispatcher.ReadFailed(now, r.Dispatch)
		return true`,
		New: `		return true`,
	},
	{
		Name: "M31", File: "coordinator/drains.go", Trouble: "drains", First: 7,
		Breaks: "a drain is answered while another member may be dead",
		Old:    "(d.others && c.memberSilent || c.waitsForHung(now, &d))",
		New:    "c.waitsForHung(now, &d)",
	},
	{
		Name: "M38", File: "coordinator/drains.go", In: "..", Test: "TestDrainWaitsForCallsThatTimedOut",
		Breaks: "a drain is answered while a call that timed out may succeed",
		Old:    "if c.Hung() == 0 {",
		New:    "if true {",
	},
	{
		Name: "M32", File: "coordinator/lanes.go", Trouble: "drains", First: 0,
		Breaks: "a member that turns out to live has no drain answered",
		Old:    "if c.memberSilent && !silent && len(c.drains) > 0 {",
		New:    "if false {",
		Strike: "the next poll answers it: it costs a PollInterval",
	},
	{
		Name: "M33", File: "coordinator/lanes.go", Trouble: "drains", First: 0,
		Breaks: "a member counts as dead that was so once",
		Old:    "c.memberSilent = silent",
		New:    "c.memberSilent = c.memberSilent || silent",
	},
	{
		Name: "S8", File: "coordinator/scans.go", Trouble: "operators", First: 0,
		Breaks: "a sweep goes beyond the cursor",
		Old:    "p.Upto = min(cursor, p.Cursor+span)",
		New:    "p.Upto = p.Cursor + span",
		Strike: "the dispatcher takes no orphan above the cursor: B14",
	},
	{
		Name: "S9", File: "coordinator/scans.go", Trouble: "outage", First: 43,
		Breaks: "nobody sees that an operator settled what a key waits for",
		Old: `	c.dispatcher.WaitingGone(now, t, gone)
`,
		New: "",
	},
	{
		Name: "S10", File: "coordinator/scans.go", Trouble: "operators", First: 7,
		Breaks: "nobody sees that an operator settled what blocks a key",
		Old: `		c.dispatcher.BlockedSeen(now, begun, p.Assignment, p.Cursor, to, page)
`,
		New: "",
	},
	{
		Name: "S13", File: "coordinator/settle.go", Trouble: "whatever", First: 9,
		Breaks: "results that were given up are counted for ever",
		Old: `	c.dispatcher.Unsettled(published, failed)
`,
		New: "",
	},
	{
		Name: "M34", File: "coordinator/reads.go", Trouble: "drains", Test: "TestMuchThatFellDueDelaysNoPoll",
		In:     "coordinator",
		Breaks: "the scan of due rows waits for the next poll, although many fell due",
		Old:    "if c.reads.manyDue {",
		New:    "if false {",
	},
	{
		Name: "M35", File: "coordinator/drains.go", Trouble: "drains", Test: "TestDrainNamesTheTopicOfDueMessages",
		In:     "coordinator",
		Breaks: "a drain does not name paused topics whose due messages no read has returned",
		Old:    "\tc.dispatcher.ReadAllDue() // so a read in flight does not find that no work is left\n",
		New:    "",
	},
	{
		Name: "M36", File: "coordinator/reads.go", Trouble: "drains", Test: "TestReadWithoutRoomReadsNoDueRows",
		In:     "coordinator",
		Breaks: "a read without room for due rows counts as one that saw them",
		Old:    "if room > 0 && (",
		New:    "if (",
	},
	{
		Name: "M37", File: "dispatch/requeues.go", Trouble: "drains",
		Test:   "TestDrainNamesTheTopicOfMessagesDueDuringARead",
		In:     "coordinator",
		Breaks: "a drain relies on a read that began before it and left out paused topics",
		Old:    "func (d *Dispatcher) ReadAllDue() { d.readDue(dueOfAll) }",
		New:    "func (d *Dispatcher) ReadAllDue() { d.readDue(dueOfOpen) }",
	},
}
