package mutants

// dispatchMutants are mutants of package dispatch: what may be published, and when.
var dispatchMutants = []Mutant{
	{
		Name: "B1", File: "dispatch/results.go", Trouble: "whatever", First: 11,
		Breaks: "what was settled is forgotten at once",
		Old: `		d.settled = append(d.settled, r)
`,
		New: `		if r.call.results == 0 && l.known[r.ID] == r {
			delete(l.known, r.ID)
		}
`,
	},
	{
		Name: "B2", File: "dispatch/reads.go", Trouble: "whatever", First: 2,
		Breaks: "what was settled is forgotten during a read",
		Old: `	before := d.rows
	saw := d.recordDueSeen(a, r)`,
		New: `	before := d.rows
	d.forgetSettled()
	saw := d.recordDueSeen(a, r)`,
	},
	{
		Name: "B3", File: "dispatch/results.go", Trouble: "whatever", First: 0,
		Breaks: "a failure blocks its key only once it is settled",
		Old:    "case r.Key == \"\" || l.releasing:",
		New:    "case l != nil:",
	},
	{
		Name: "D1", File: "dispatch/deferred.go", Trouble: "whatever", First: 0,
		Breaks: "a row is kept that its key has deferred",
		Old:    `k != nil && k.low != 0 && k.low <= id {`,
		New:    `false && k != nil {`,
	},
	{
		Name: "D2", File: "dispatch/deferred.go", Trouble: "whatever", First: 0,
		Breaks: "what a key has on other topics does not wait for a closed one",
		Old:    `return w.topic != nil && w.low <= id &&`,
		New:    `return false &&`,
	},
	{
		Name: "D3", File: "dispatch/deferred.go", Trouble: "whatever", Test: "TestRowsOfATopicThatCatchesUp",
		Breaks: "what is new on a topic does not wait until that is caught up",
		Old:    `>>l.assignment.Lane&1 == 0 && !t.isDeferred(l, id)`,
		New:    `>>l.assignment.Lane&1 == 0`,
	},
	{
		Name: "D4", File: "dispatch/deferred.go", Trouble: "whatever", First: 0,
		Breaks: "what there was too much of is taken for caught up",
		Old:    `case r.caught[n].rows >= limit:`,
		New:    `case limit < 0:`,
	},
	{
		Name: "D5", File: "dispatch/deferred.go", Trouble: "whatever", First: 0,
		Breaks: "a stretch that did not reach the cursor is taken for caught up",
		Old:    `case a.CatchUp.Short>>n&1 != 0:`,
		New:    `case false:`,
	},
	{
		Name: "D7", File: "dispatch/deferred.go", Trouble: "whatever", First: 0,
		Breaks: "what was deferred below during a read is taken for caught up",
		Old:    `low == 0 || low < c.From[n]:`,
		New:    `low == 0:`,
	},
	{
		Name: "D8", File: "dispatch/deferred.go", Trouble: "whatever", First: 0,
		Breaks: "what there was no room for is taken for caught up",
		Old:    `case cut > 0:`,
		New:    `case false:`,
	},
	{
		Name: "D9", File: "dispatch/deferred.go", Trouble: "whatever", First: 0,
		Breaks: "the row after those that were caught up is passed by",
		Old:    `max(low, to[n]+1)`,
		New:    `max(low, to[n]+2)`,
	},
	{
		Name: "D10", File: "dispatch/pauses.go", Trouble: "outage", First: 0,
		Breaks: "a probe goes although its key has something to go before it",
		Old:    `k.isIdle(p.id) && (k.low == 0 || k.low > p.id)`,
		New:    `true`,
	},
	{
		Name: "D11", File: "dispatch/pauses.go", Trouble: "whatever", Test: "TestKeyWithoutAPlaceIsNoProbe",
		Breaks: "a probe goes whose key may have had no place to wait",
		Old:    `(l.overflow == 0 || p.id < l.overflow) && waits`,
		New:    `waits`,
	},
	{
		Name: "D12", File: "dispatch/rows.go", Trouble: "whatever", First: 6,
		Breaks: "a row that was committed late makes a full queue longer",
		Old:    `case noRoom || int(k.n) >= d.cfg.KeyRows:`,
		New:    `case noRoom:`,
	},
	{
		Name: "D14", File: "dispatch/rows.go", Trouble: "whatever", First: 0,
		Breaks: "a known row is taken for a new one",
		Old: `	if l.known[r.ID] != nil {
		return false
	}
	if r.call.due`,
		New: `	if r.call.due`,
	},
	{
		Name: "D15", File: "dispatch/results.go", Trouble: "whatever", First: 0,
		Breaks: "what is behind a row that is sent back stays in memory",
		Old: `		d.deferForTopic(l, t, r, handedOut)
		d.deferQueue(k)
`,
		New: `		d.deferForTopic(l, t, r, handedOut)
`,
	},
	{
		Name: "D16", File: "dispatch/deferred.go", Trouble: "outage", First: 0,
		Breaks: "keys wait for a topic that is caught up",
		Old: `			d.endTopicWaits(t, l)
`,
		New: ``,
	},
	{
		Name: "D17", File: "dispatch/results.go", Trouble: "whatever", First: 0,
		Breaks: "after a late success a copy of the message waits on",
		Old: `	if late {
		d.forgetCopies(l, r)
	}
`,
		New: ``,
	},
	{
		Name: "B9", File: "dispatch/calls.go", Trouble: "whatever", First: 0,
		Breaks: "a late success counts for nothing",
		Old: `	case r.Verdict == OK:
		d.succeeded(c, true)`,
		New: `	case false:
		d.succeeded(c, true)`,
	},
	{
		Name: "B10", File: "dispatch/calls.go", Trouble: "whatever", First: 11,
		Breaks: "a late error is charged",
		Old: `	case !late:
		d.applyResult(c, r)`,
		New: `	case !late || r.Verdict != OK:
		d.applyResult(c, r)`,
	},
	{
		Name: "B11", File: "dispatch/calls.go", Trouble: "whatever", First: 0,
		Breaks: "a time-out is charged of a call that has returned",
		Old: `	if c.state != expired {
		return
	}
	c.state = hung`,
		New: `	if c.state != expired && c.state != returned {
		return
	}
	c.state = hung`,
	},
	{
		Name: "B12", File: "dispatch/lanes.go", Trouble: "whatever", First: 0,
		Breaks: "a lane is free with results unsettled",
		Old:    " && l.inFlight == 0 && l.unsettled == 0 {",
		New:    " && l.inFlight == 0 {",
	},
	{
		Name: "B14", File: "dispatch/reads.go", Trouble: "operators", Test: "TestOrphans",
		Breaks: "an orphan above the cursor is taken before its turn",
		Old:    "found && !f.Dead && fetch.id <= ours[fetch.assignment.Lane].Cursor {",
		New:    "found && !f.Dead {",
	},
	{
		Name: "B15", File: "dispatch/calls.go", Trouble: "whatever", First: 0,
		Breaks: "hung calls are not counted",
		Old:    "callsFactor*d.cfg.Concurrency-d.calls())",
		New:    "callsFactor*d.cfg.Concurrency-d.young.n-d.slow.n)",
		Strike: "three topics do not have as many calls as that",
	},
	{
		Name: "B16", File: "dispatch/results.go", Trouble: "operators", First: 112,
		Breaks: "a key does not go on after its blocked row is gone",
		Old: `	default:
		d.removeBlocked(l, b)
	}`,
		New: `	case o.Kind != Gone:
		d.removeBlocked(l, b)
	}`,
	},
	{
		Name: "B17", File: "dispatch/lanes.go", Trouble: "whatever", First: 0,
		Breaks: "a lane is free with calls under way",
		Old:    "!l.free && l.inFlight == 0 && l.unsettled == 0",
		New:    "!l.free && l.unsettled == 0",
	},
	{
		Name: "B18", File: "dispatch/keys.go", Trouble: "whatever", First: 2,
		Breaks: "a key's row goes while another one of it is under way",
		Old:    "if r == nil || k.inFlight != nil || r.call.state == pending || k.blocked(r.ID) {",
		New:    "if r == nil || r.call.state == pending || k.blocked(r.ID) {",
	},
	{
		Name: "B19", File: "dispatch/keys.go", Trouble: "whatever", First: 0,
		Breaks: "a key's row goes while the key is blocked",
		Old:    "r.call.state == pending || k.blocked(r.ID) {",
		New:    "r.call.state == pending {",
		Strike: "a key has no row in its queue that is blocked, as the recount of each schedule sees",
	},
	{
		Name: "B58", File: "dispatch/requeues.go", Trouble: "whatever", Test: "TestDiscardedAndRequeued",
		Breaks: "what was sent again does not wait for lower ids of its key",
		Old:    `return k.n > 0 || b.generation != "" &&`,
		New:    `return k.n > 0 && b.generation != "" &&`,
	},
	{
		Name: "B59", File: "dispatch/deferred.go", Trouble: "whatever", Test: "TestRequeuedBeforeItsTopicWasResumed",
		Breaks: "a topic goes on before it is known what was sent again while it was paused",
		Old:    `!t.closed && t.dueUnseen>>l.assignment.Lane&1 == 0 &&`,
		New:    `!t.closed &&`,
	},
	{
		Name: "B60", File: "dispatch/fetches.go", Trouble: "whatever", Test: "TestRequeuedWhileItsTopicIsClosed/unreachable",
		Breaks: "a probe goes before it is known what was sent again",
		Old:    `case !requeuesKnown:`,
		New:    `case false:`,
	},
	{
		Name: "B61", File: "dispatch/large.go", Trouble: "whatever", Test: "TestLateMessagesHideNoRequeued",
		Breaks: "what was sent again is taken out of a read with what there was no room for",
		Old:    `if blocks || *at == 0 {`,
		New:    `if blocks && *at == 0 || *at == 0 {`,
	},
	{
		Name: "B62", File: "dispatch/rows.go", Trouble: "whatever", Test: "TestNotQuietWithoutThePayloadOfWhatFellDue",
		Breaks: "what fell due and came without payload is forgotten",
		Old:    "case noRoom: // the next read of due rows wants its payload, or comes when there is room\n\t\td.readDue(dueOfOpen)\n",
		New:    "case noRoom:\n",
	},
	{
		Name: "B63", File: "dispatch/rows.go", Trouble: "whatever", Test: "TestDelayedRowsOfBlockedKeys",
		Breaks: "all delayed rows are read each time that a failed message of a key is published",
		Old:    `case len(k.blockedIDs) > 0:`,
		New:    `case false:`,
	},
	{
		Name: "B64", File: "dispatch/reads.go", Trouble: "whatever", Test: "TestDelayedRowsOfBlockedKeys",
		Breaks: "delayed rows that fill a read and are not kept are read again at once",
		Old:    `many || more || l.manyDue && added[t.Lane] > 0`,
		New:    `many || l.manyDue`,
	},
	{
		Name: "B66", File: "dispatch/reads.go", Trouble: "whatever", Test: "TestDelayedRowsOfABlockedKeyHideNoOther",
		Breaks: "delayed rows of a blocked key hide those of others",
		Old:    "\t\td.leaveOutDelayed(&a)\n",
		New:    "",
	},
	{
		Name: "B67", File: "dispatch/reads.go", Trouble: "whatever", Test: "TestAKeyGoesOnWhileItsDelayedRowsAreLeftOut",
		Breaks: "delayed rows are left out although their key goes on",
		Old:    "if len(k.blockedIDs) == 0 && d.activeLane(k.lane.assignment) == k.lane {",
		New:    "if len(k.blockedIDs) < 0 {",
	},
	{
		Name: "B68", File: "dispatch/reads.go", Trouble: "whatever", Test: "TestDelayedRowsOfAnOpenBreakerHideNoOther",
		Breaks: "delayed rows of a topic that is paused for unknown errors hide those of others",
		Old:    "\t\t\ta.Closed = append(a.Closed, t.name)\n",
		New:    "",
	},
	{
		Name: "B69", File: "dispatch/pauses.go", Trouble: "whatever", Test: "TestTheNewestMessageIsTheNextProbe",
		Breaks: "one good message among many that fail is tried after all of them",
		Old:    "case n > 0 && t.candidates[n-1].id > p.id:",
		New:    "case false:",
	},
	{
		Name: "B20", File: "dispatch/retries.go", Trouble: "whatever", First: 0,
		Breaks: "a blocked row goes that is not the first of its key",
		Old: `	case !b.isFirst():
		d.waitForBlocked(l, b)
		return
	case b.key != nil`,
		New:    `	case b.key != nil`,
		Strike: "a blocked row is read again after it was read: it costs a read",
	},
	{
		Name: "B21", File: "dispatch/results.go", Trouble: "whatever", First: 0,
		Breaks: "a failure of a row that was published late blocks its key",
		Old:    `		case l.published(c.Row.ID): // an`,
		New:    `		case false: // an`,
		Strike: "the failure of a message that is published is answered so: it costs a statement",
	},
	{
		Name: "B22", File: "dispatch/results.go", Trouble: "whatever", First: 1,
		Breaks: "a blocked row is not retried",
		Old: `	case o.Kind == Waiting:
		d.schedule(l, b, d.now.Add(o.Delay))`,
		New: `	case o.Kind == Waiting:`,
	},
	{
		Name: "B23", File: "dispatch/results.go", Trouble: "whatever", First: 46,
		Breaks: "a dead message does not block its key though the dead are to",
		Old:    "case o.Kind == Dead && d.cfg.BlockKeyOnDead && b.key != nil:",
		New:    "case false:",
	},
	{
		Name: "B25", File: "dispatch/reads.go", Trouble: "whatever", First: 58,
		Breaks: "what there was no room for is taken for gone",
		Old:    "if fetch.reason != forOrphan && !r.Late[fetch.id] {",
		New:    "if fetch.reason != forOrphan {",
	},
	{
		Name: "B26", File: "dispatch/results.go", Trouble: "blindness", First: 0,
		Breaks: "the breaker never opens: each unknown error is charged",
		Old: `		case r.Verdict == Unknown:
			d.failedUnknown(l, c, r)`,
		New: `		case r.Verdict == Unknown:
			d.rejected(l, c, r)`,
	},
	{
		Name: "B27", File: "dispatch/reads.go", Trouble: "whatever", First: 15,
		Breaks: "a failed read is not asked for again",
		Old:    "case fetch.reason == forRetry && failed &&",
		New:    "case false &&",
	},
	{
		Name: "B29", File: "dispatch/fetches.go", Trouble: "outage", First: 0,
		Breaks: "a topic that an operator has paused is tried",
		Old:    "return t.paused && !t.byOperator && t.probe == nil",
		New:    "return t.paused && t.probe == nil",
		Strike: "the row that was requested for a probe is read again: it costs a read",
	},
	{
		Name: "B31", File: "dispatch/topics.go", Trouble: "whatever", First: 2,
		Breaks: "a topic may have more calls than Concurrency",
		Old:    "if t.byOperator || t.calls >= slots {",
		New:    "if t.byOperator {",
	},
	{
		Name: "B33", File: "dispatch/lanes.go", Trouble: "whatever", First: 0,
		Breaks: "a lane is free again and again",
		Old:    "if l.releasing && !l.free && l.inFlight",
		New:    "if l.releasing && l.inFlight",
		Strike: "the rebalancer releases it once",
	},
	{
		Name: "B36", File: "dispatch/reads.go", Trouble: "operators", Test: "TestScripts/requeued-retry",
		Breaks: "an operator's batch is not held behind its first",
		Old: `	d.addRequeued(r.Due)
`,
		New: "",
	},
	{
		Name: "B37", File: "dispatch/retries.go", Trouble: "whatever", Test: "TestScripts/requeued-retry",
		Breaks: "a message that was sent again goes before it is known what was sent again with it",
		Old:    "case b.key != nil && b.generation != r.Generation && !requeuesKnown:",
		New:    "case false:",
	},
	{
		Name: "B38", File: "dispatch/requeues.go", Trouble: "operators", Test: "TestScripts/requeued-late",
		Breaks: "a late success is taken for that of a message which was sent again since",
		Old:    "return l.known[r.ID].requeuedAfter(r)",
		New:    "return false",
	},
	{
		Name: "B44", File: "dispatch/requeues.go", Trouble: "operators", Test: "TestScripts/requeued-under-way",
		Breaks: "the answer to an attempt of before counts for a message that was sent again since",
		Old:    "if b == nil || b.key == nil || b.generation == r.Generation {",
		New:    "if b == nil || true {",
	},
	{
		Name: "B45", File: "dispatch/breaker.go", Trouble: "blindness", Test: "TestFourMessagesThatFailInTurnsAreCharged",
		Breaks: "messages that fail several times open the breaker",
		Old:    "len(*f) < breakAfter && !slices.Contains(*f, uuid) {",
		New:    "len(*f) < breakAfter && (len(*f) == 0 || !slices.Contains((*f)[len(*f)-1:], uuid)) {",
	},
	{
		Name: "B48", File: "dispatch/breaker.go", Trouble: "blindness", Test: "TestASuccessStartsTheCountAgain",
		Breaks: "a success does not start the count of failures again",
		Old:    "\t*t.unknown, *t.publisher = nil, nil\n",
		New:    "",
	},
	{
		Name: "B56", File: "dispatch/breaker.go", Trouble: "blindness", Test: "TestTopicsOfAPublisherFailTogether",
		Breaks: "failures on several topics of a publisher do not count together",
		Old:    "\t\tt.publisher.add(c.Row.UUID)\n",
		New:    "",
	},
	{
		Name: "B46", File: "dispatch/results.go", Trouble: "blindness", Test: "TestScripts/outage-late",
		Breaks: "the failure of a probe whose message was published late ends no probe",
		Old:    "r.Verdict == Unknown && !l.published(c.Row.ID):",
		New:    "r.Verdict == Unknown:",
	},
	{
		Name: "B49", File: "dispatch/dispatcher.go", Trouble: "whatever", Test: "TestNotQuietWhileARetryIsOverdue",
		Breaks: "it is quiet while a blocked row is late",
		Old:    "len(d.settled) > 0 || d.wantDue != noDue || d.hasOverdue() {",
		New:    "len(d.settled) > 0 || d.wantDue != noDue {",
	},
	{
		Name: "B50", File: "dispatch/dispatcher.go", Trouble: "whatever", Test: "TestNotQuietWhileWhatWasSettledComesAgain",
		Breaks: "it is quiet though a read took what came again for what was settled during it",
		Old:    "len(d.settled) > 0 || d.wantDue != noDue || d.hasOverdue() {",
		New:    "d.wantDue != noDue || d.hasOverdue() {",
	},
	{
		Name: "B51", File: "dispatch/keys.go", Trouble: "outage", Test: "TestLowerIDsGoFirst",
		Breaks: "what was committed late goes behind what is in memory of its key",
		Old:    "case due || !k.goesBefore(r.ID):",
		New:    "case true:",
	},
	{
		Name: "B57", File: "dispatch/keys.go", Trouble: "whatever", Test: "TestWhatFallsDueGoesBehind",
		Breaks: "what falls due goes before what is there",
		Old:    "case due || !k.goesBefore(r.ID):",
		New:    "case !k.goesBefore(r.ID):",
	},
	{
		Name: "B52", File: "dispatch/topics.go", Trouble: "outage", Test: "TestProbesThatMayNotGo",
		Breaks: "the probe of a topic that an operator has paused stays in memory",
		Old:    "if t.byOperator && t.probe != nil && t.probe.call.state == pending {",
		New:    "if false {",
	},
	{
		Name: "B53", File: "dispatch/fetches.go", Trouble: "outage", Test: "TestProbesThatMayNotGo",
		Breaks: "a topic is tried that has no place for a call",
		Old:    "(d.hasSlot(t) || !d.isWaitedFor(t))\n",
		New:    "true\n",
	},
	{
		Name: "B55", File: "dispatch/requeues.go", Trouble: "operators", Test: "TestScripts/requeued-queued",
		Breaks: "the attempt from before an operator's act is published as well",
		Old:    "known != nil && known.Generation != r.Generation && known.call.state == pending {",
		New:    "false {",
	},
	{
		Name: "M10", File: "dispatch/lanes.go", Trouble: "whatever", First: 0,
		Breaks: "a lane that was loaded wakes no read",
		Old: `	d.retryMoved = true
	d.effects.Read = true`,
		New:    `	d.retryMoved = true`,
		Strike: "the reader that loads a lane reads next in any case",
	},
	{
		Name: "B70", File: "dispatch/large.go", Trouble: "drains", Test: "TestRowsThatWaitForDueRowsNeedNoPayload",
		Breaks: "rows that wait for due rows take the room for their payloads",
		Old:    "t.closed || unseen",
		New:    "t.closed && unseen",
	},
	{
		Name: "B71", File: "dispatch/large.go", Trouble: "whatever", Test: "TestRowsThatWaitForDueRowsNeedNoPayload",
		Breaks: "later rows of their keys, on other topics, take the room for their payloads",
		Old:    "w.covers(l, r.ID) && w.topic.staysClosed",
		New:    "w.covers(l, 0) && w.topic.staysClosed",
	},
	{
		Name: "B72", File: "dispatch/deferred.go", Trouble: "whatever", Test: "TestDelayedMessagesProbeTheirTopic",
		Breaks: "a message that fell due never probes its topic, which opens instead",
		Old:    "\t\tt.addCandidate(first, handedOut)\n\t\treturn\n\t}\n\tif low",
		New:    "\t\treturn\n\t}\n\tif low",
	},
	{
		Name: "B73", File: "dispatch/results.go", Trouble: "whatever", Test: "TestRetryWithoutAKeyIsReadByID",
		Breaks: "a failed message without a key waits for a poll",
		Old:    "\t\td.addBlocked(l, \"\", r.ID, r.Topic, d.now.Add(o.Delay))\n",
		New:    "",
	},
	{
		Name: "B74", File: "dispatch/topics.go", Trouble: "whatever", Test: "TestRowsThatWaitedTakeTurns",
		Breaks: "rows that waited go only after all others of their topic",
		Old:    "if t.turn = !t.turn; t.turn {",
		New:    "if t.turn {",
	},
	{
		Name: "B75", File: "dispatch/pauses.go", Trouble: "whatever", Test: "TestProbeCandidatesAreDifferent",
		Breaks: "a message that fails probes its topic each time that it was read again",
		Old:    "case slices.Contains(t.candidates, p):",
		New:    "case handedOut && slices.Contains(t.candidates, p):",
	},
	{
		Name: "B76", File: "dispatch/fetches.go", Trouble: "whatever", Test: "TestDeadCandidateWithoutAKey",
		Breaks: "a dead message without a key is read to probe its topic, again and again",
		Old:    `case !found, f.Dead && a.name == "", r.Topic != t.name:`,
		New:    `case !found, r.Topic != t.name:`,
	},
	{
		Name: "B77", File: "dispatch/retries.go", Trouble: "whatever", Test: "TestDeadRetryWithoutAKeyIsForgotten",
		Breaks: "a dead message without a key is remembered forever",
		Old:    "case !found, f.Dead && b.key == nil:",
		New:    "case !found:",
	},
	{
		Name: "B78", File: "dispatch/topics.go", Trouble: "drains", Test: "TestQuietNamesTheTopicOfADueRow",
		Breaks: "a drain is done although due messages wait for a topic that an operator has paused",
		Old:    "t.dueDropped |= 1 << l.assignment.Lane",
		New:    "",
	},
	{
		Name: "B79", File: "dispatch/lanes.go", Trouble: "drains", Test: "TestQuietNamesThePausedTopicsOfATakenLane",
		Breaks: "a drain does not name paused topics whose due messages the last owner of a lane saw",
		Old:    "\td.ReadAllDue() // the lane's previous owner may have seen some\n",
		New:    "",
	},
	{
		Name: "B80", File: "dispatch/rows.go", Trouble: "whatever", Test: "TestReadReturnsMoreThanThereIsRoomFor",
		Breaks: "a read that returns more than there is room for fills the memory",
		Old:    "noRoom := r.Large || !d.hasSomeRoom()",
		New:    "noRoom := r.Large",
	},
	{
		Name: "B81", File: "dispatch/pauses.go", Trouble: "blindness", Test: "TestDueRowsOfAnOpenBreaker",
		Breaks: "a drain misses due rows of a topic whose breaker has just closed",
		Old:    "if t.unclassified { // reads left out due rows",
		New:    "if false {",
	},
	{
		Name: "B82", File: "dispatch/retries.go", Trouble: "outage", Test: "TestRetryWithoutAKeyProbesItsTopic",
		Breaks: "a retry without a key is forgotten instead of probing its topic",
		Old:    "\tcase !b.isFirst(): // a lower one has come in the meantime\n",
		New: `	case b.key == nil:
		d.removeBlocked(l, b)
		d.accept(l, r, true)
	case !b.isFirst():
`,
	},
	{
		Name: "B83", File: "dispatch/retries.go", Trouble: "whatever", Test: "TestRetriesLeaveRoomForNewRows",
		Breaks: "overdue retries take all room for new rows",
		Old:    "visits < 0 || len(a.IDs) == most {",
		New:    "visits < 0 || most < 0 {",
	},
	{
		Name: "B84", File: "dispatch/requeues.go", Trouble: "whatever", Test: "TestAReadFollowsAClosedBreaker",
		Breaks: "due rows that the next read must look for wait for the next poll",
		Old:    "d.wantDue, d.wantRead = max(d.wantDue, rows), true }",
		New:    "d.wantDue = max(d.wantDue, rows) }",
	},
	{
		Name: "B85", File: "dispatch/requeues.go", Trouble: "drains", Test: "TestQuietForgetsDueRowsThatAreGone",
		Breaks: "each drain names a paused topic whose due messages an operator discarded",
		Old:    "t.dueDropped &^= lanes",
		New:    "_ = t",
	},
	{
		Name: "B86", File: "dispatch/requeues.go", Trouble: "drains",
		Test:   "TestQuietNamesTheTopicOfADueRowBehindALateOne",
		Breaks: "a drain does not name paused topics whose due messages were read without room",
		Old:    "d.readDue(a.wantDue) // rows",
		New:    "// rows",
	},
	{
		Name: "B87", File: "dispatch/retries.go", Trouble: "drains", First: 100,
		Breaks: "a drain does not return while a requeued row waits for a lower one of a paused topic",
		Old:    "if b.waitsForRows && l.hasLower(b) {",
		New:    "if false {",
	},
	{
		Name: "B88", File: "dispatch/results.go", Trouble: "operators", Test: "TestRequeuedBeforeItsDeathIsKnown",
		Breaks: "the key of a message goes on that was requeued before its death was known",
		Old:    `case b.key != nil && b.generation != r.Generation:`,
		New:    `case false:`,
	},
	{
		Name: "B89", File: "dispatch/results.go", Trouble: "drains", Test: "TestPausedAfterItsProbe",
		Breaks: "a probe's key waits for its topic again if that is paused before it has caught up",
		Old:    `defer d.closeBreaker(c)`,
		New:    `d.closeBreaker(c)`,
	},
}
