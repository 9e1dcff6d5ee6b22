package mutants

// boardMutants are those of package board: what may be published, and when.
var boardMutants = []Mutant{
	{
		Name: "B1", File: "board/results.go", Trouble: "whatever", First: 11,
		Breaks: "what was settled is forgotten at once",
		Old: `		b.settled = append(b.settled, r)
`,
		New: `		if r.call.results == 0 && l.known[r.ID] == r {
			delete(l.known, r.ID)
		}
`,
	},
	{
		Name: "B2", File: "board/reads.go", Trouble: "whatever", First: 2,
		Breaks: "what was settled is forgotten during a read",
		Old: `	before := b.rows
	sawDue := b.sawDue(a, r)`,
		New: `	before := b.rows
	b.forget()
	sawDue := b.sawDue(a, r)`,
	},
	{
		Name: "B3", File: "board/results.go", Trouble: "whatever", First: 0,
		Breaks: "a failure blocks its key only once it is settled",
		Old:    "case r.Key == \"\" || l.handing:",
		New:    "case l != nil:",
	},
	{
		Name: "B4", File: "board/asks.go", Trouble: "whatever", First: 331,
		Breaks: "a row is unparked that is not the lowest of its key",
		Old:    "k.parked.lowest() == a.id && int(k.n) < b.cfg.Chain",
		New:    "int(k.n) < b.cfg.Chain",
	},
	{
		Name: "B5", File: "board/asks.go", Trouble: "outage", First: 0,
		Breaks: "a trial is not the first of its key",
		Old:    "k.heads.len() > 0 || !k.isPen() && k.parked.lowest() != a.id:",
		New:    "k.heads.len() > 0:",
		Strike: "nothing of a key is parked while its trial is read: it waits, and has no row in memory",
	},
	{
		Name: "B6", File: "board/rows.go", Trouble: "whatever", First: 1,
		Breaks: "a key's bit in the shadow stops no later row",
		Old:    "if l.shadow.has(r.Key) {",
		New:    "if false {",
	},
	{
		Name: "B7", File: "board/shadow.go", Trouble: "whatever", First: 0,
		Breaks: "the lowest id of a shadow is too high",
		Old:    "Rewind{l.term, s.low - 1}",
		New:    "Rewind{l.term, s.low}",
	},
	{
		Name: "B8", File: "board/shadow.go", Trouble: "whatever", First: 0,
		Breaks: "a shadow is cleared without a rewind",
		Old:    "a.Rewinds = append(a.Rewinds, Rewind",
		New:    "_ = append(a.Rewinds, Rewind",
	},
	{
		Name: "B9", File: "board/calls.go", Trouble: "whatever", First: 0,
		Breaks: "a late success counts for nothing",
		Old: `	case r.Verdict == OK:
		b.succeeded(c, true)`,
		New: `	case false:
		b.succeeded(c, true)`,
	},
	{
		Name: "B10", File: "board/calls.go", Trouble: "whatever", First: 11,
		Breaks: "a late error is charged",
		Old: `	case !late:
		b.judge(c, r)`,
		New: `	case !late || r.Verdict != OK:
		b.judge(c, r)`,
	},
	{
		Name: "B11", File: "board/calls.go", Trouble: "whatever", First: 0,
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
		Name: "B12", File: "board/lanes.go", Trouble: "whatever", First: 0,
		Breaks: "a lane is free with results unsettled",
		Old:    " && l.underWay == 0 && l.unsettled == 0 {",
		New:    " && l.underWay == 0 {",
	},
	{
		Name: "B13", File: "board/rows.go", Trouble: "whatever", First: 2,
		Breaks: "rows behind a parked one are kept in memory",
		Old:    "k.stuck() || k.parked.len() > 0 || int(k.n) >= b.cfg.Chain",
		New:    "k.stuck() || int(k.n) >= b.cfg.Chain",
	},
	{
		Name: "B14", File: "board/reads.go", Trouble: "operators", Test: "TestStrays",
		Breaks: "a stray above the mark is taken before its turn",
		Old:    "found && !f.Dead && ask.id <= ours[ask.term.Lane].Mark {",
		New:    "found && !f.Dead {",
	},
	{
		Name: "B15", File: "board/calls.go", Trouble: "whatever", First: 0,
		Breaks: "hung calls are not counted",
		Old:    "manyCalls*b.cfg.Concurrency-b.calls)",
		New:    "manyCalls*b.cfg.Concurrency-b.young.n-b.slow.n)",
		Strike: "three topics do not have as many calls as that",
	},
	{
		Name: "B16", File: "board/results.go", Trouble: "operators", First: 112,
		Breaks: "a key does not go on after its head is gone",
		Old: `	default:
		b.removeHead(l, h)
	}`,
		New: `	case o.Kind != Gone:
		b.removeHead(l, h)
	}`,
	},
	{
		Name: "B17", File: "board/lanes.go", Trouble: "whatever", First: 0,
		Breaks: "a lane is free with calls under way",
		Old:    "!l.free && l.underWay == 0 && l.unsettled == 0",
		New:    "!l.free && l.unsettled == 0",
	},
	{
		Name: "B18", File: "board/keys.go", Trouble: "whatever", First: 2,
		Breaks: "a key's row goes while another one of it is under way",
		Old:    "if r == nil || k.under != nil || r.call.state == pending || k.blocked() {",
		New:    "if r == nil || r.call.state == pending || k.blocked() {",
	},
	{
		Name: "B19", File: "board/keys.go", Trouble: "whatever", First: 0,
		Breaks: "a key's row goes while the key is blocked",
		Old:    "r.call.state == pending || k.blocked() {",
		New:    "r.call.state == pending {",
		Strike: "a key that is blocked has no row in its chain, as the recount of each schedule sees",
	},
	{
		Name: "B20", File: "board/retries.go", Trouble: "whatever", First: 0,
		Breaks: "a head goes that is not the first of its key",
		Old: `	case !h.isFirst():
		b.waitBehind(l, h)
		return
	case h.key != nil`,
		New:    `	case h.key != nil`,
		Strike: "a head is looked at again after it was read: it costs a read",
	},
	{
		Name: "B21", File: "board/results.go", Trouble: "whatever", First: 0,
		Breaks: "a failure of a row that was published late blocks its key",
		Old:    `		case l.published(c.Row.ID): // an`,
		New:    `		case false: // an`,
		Strike: "the failure of a message that is published is answered so: it costs a statement",
	},
	{
		Name: "B22", File: "board/results.go", Trouble: "whatever", First: 1,
		Breaks: "a head is not retried",
		Old: `	case o.Kind == Waiting:
		b.schedule(l, h, b.now.Add(o.Delay))`,
		New: `	case o.Kind == Waiting:`,
	},
	{
		Name: "B23", File: "board/results.go", Trouble: "whatever", First: 46,
		Breaks: "a dead message does not block its key though the dead are to",
		Old:    "case o.Kind == Dead && b.cfg.BlockKeyOnDead:",
		New:    "case false:",
	},
	{
		Name: "B24", File: "board/results.go", Trouble: "whatever", First: 0,
		Breaks: "a locked failure is forgotten",
		Old: `		b.failed = append(b.failed, o.Failure)
		b.effects.Settle = true
		return`,
		New:    `		return`,
		Strike: "the settler keeps what was locked, and never tells Locked",
	},
	{
		Name: "B25", File: "board/reads.go", Trouble: "whatever", First: 58,
		Breaks: "what there was no room for is taken for gone",
		Old:    "if ask.why != forStray && !r.Late[ask.id] {",
		New:    "if ask.why != forStray {",
	},
	{
		Name: "B26", File: "board/results.go", Trouble: "blindness", First: 0,
		Breaks: "the breaker never opens: each unknown error is charged",
		Old: `		case r.Verdict == Unknown:
			b.failedUnknown(l, c, r)`,
		New: `		case r.Verdict == Unknown:
			b.rejected(l, c, r)`,
	},
	{
		Name: "B27", File: "board/reads.go", Trouble: "whatever", First: 15,
		Breaks: "a failed read is not asked for again",
		Old:    "case ask.why == forRetry && failed &&",
		New:    "case false &&",
	},
	{
		Name: "B28", File: "board/results.go", Trouble: "whatever", First: 2,
		Breaks: "what is put back is not parked in the place of its key",
		Old: `		b.parkAgain(k, r, again)
		b.putBack(k)
		b.waitsAfter(k, r.ID)`,
		New: `		b.putBack(k)
		b.waitsAfter(k, r.ID)`,
	},
	{
		Name: "B29", File: "board/asks.go", Trouble: "outage", First: 0,
		Breaks: "a topic that an operator has paused is tried",
		Old:    "return t.paused && !t.byOperator && t.trial == nil",
		New:    "return t.paused && t.trial == nil",
		Strike: "the row that a trial was asked for is looked at again: it costs a read",
	},
	{
		Name: "B30", File: "board/results.go", Trouble: "whatever", First: 39,
		Breaks: "after a late success a copy of the message waits on",
		Old: `	if late {
		b.forgetCopies(l, r, c.topic)
	}`,
		New: "",
	},
	{
		Name: "B31", File: "board/topics.go", Trouble: "whatever", First: 2,
		Breaks: "a topic may have more calls than Concurrency",
		Old:    "if t.byOperator || t.calls >= places {",
		New:    "if t.byOperator {",
	},
	{
		Name: "B32", File: "board/rows.go", Trouble: "whatever", Test: "TestRowWithoutPayloadIsAskedFor",
		Breaks: "a row is published without its payload",
		Old: `	case r.Large:
		b.park(k, r, due)
		b.advance(k)
		return false
`,
		New: "",
	},
	{
		Name: "B33", File: "board/lanes.go", Trouble: "whatever", First: 0,
		Breaks: "a lane is free again and again",
		Old:    "if l.handing && !l.free && l.underWay",
		New:    "if l.handing && l.underWay",
		Strike: "the keeper gives it back once",
	},
	{
		Name: "B34", File: "board/asks.go", Trouble: "outage", First: 0,
		Breaks: "the sweep takes a row that waits in the shadow",
		Old:    "!l.knows(id) && (l.shadow == nil || id < l.shadow.low) && len",
		New:    "!l.knows(id) && len",
		Strike: "a stray is looked at again after it was read: it costs a read",
	},
	{
		Name: "B35", File: "board/rows.go", Trouble: "whatever", First: 0,
		Breaks: "a known row is taken for a new one",
		Old: `	if l.known[r.ID] != nil || l.parked[r.ID] != nil {
		return false`,
		New: `	if l.parked[r.ID] != nil {
		return false`,
	},
	{
		Name: "B36", File: "board/reads.go", Trouble: "operators", Test: "TestScripts/sent-again-retry",
		Breaks: "an operator's batch is not held behind its first",
		Old: `	b.newHeads(r.Due)
`,
		New: "",
	},
	{
		Name: "B37", File: "board/retries.go", Trouble: "whatever", Test: "TestScripts/sent-again-retry",
		Breaks: "a message that was sent again goes before it is known what was sent again with it",
		Old:    "case h.act != r.Generation && sawDue>>l.term.Lane&1 == 0:",
		New:    "case false:",
	},
	{
		Name: "B38", File: "board/acts.go", Trouble: "operators", Test: "TestScripts/sent-again-late",
		Breaks: "a late success is taken for that of a message which was sent again since",
		Old:    "return l.known[r.ID].sentAgainAfter(r)",
		New:    "return false",
	},
	{
		Name: "B39", File: "board/pauses.go", Trouble: "outage", Test: "TestScripts/waits-late",
		Breaks: "what follows the first of a key waits for the topic of that one",
		Old:    "if k.topic != nil && k.topic.closed && !k.isPen() && (k.parked",
		New:    "if false && (k.parked",
	},
	{
		Name: "B40", File: "board/pauses.go", Trouble: "outage", Test: "TestScripts/waits-first",
		Breaks: "a key waits for the topic of a row that is not its first",
		Old:    "if k.topic != nil && k.parked.len() > 0 && k.parked.lowest() < id {",
		New:    "if false {",
	},
	{
		Name: "B41", File: "board/rows.go", Trouble: "outage", Test: "TestScripts/waits-lower",
		Breaks: "a row waits for the topic of one of its key that comes after it",
		Old:    "if k.topic != nil && k.topic != t && k.parked.len() > 0",
		New:    "if false && k.parked.len() > 0",
	},
	{
		Name: "B42", File: "board/pauses.go", Trouble: "outage", First: 0,
		Breaks: "what the shadow has of a key that is blocked waits for another topic",
		Old: `len() == 0: // a head goes first
			b.goesOn(k)`,
		New: `len() == 0: // a head goes first
			b.stopWaiting(k)
			b.advance(k)`,
		Strike: "what was refused on another topic is read again five minutes later: B47",
	},
	{
		Name: "B43", File: "board/parked.go", Trouble: "outage", Test: "TestLowerMessageTakesThePlace",
		Breaks: "a row finds no place although one that comes after it has one",
		Old:    "full && (k.isPen() || k.parked.len() == 0 || k.parked.highest() < r.ID) {",
		New:    "full {",
	},
	{
		Name: "B44", File: "board/acts.go", Trouble: "operators", Test: "TestScripts/sent-again-under-way",
		Breaks: "the answer to an attempt of before counts for a message that was sent again since",
		Old:    "if h == nil || h.key == nil || h.act == r.Generation {",
		New:    "if h == nil || true {",
	},
	{
		Name: "B45", File: "board/breaker.go", Trouble: "blindness", Test: "TestAMessageThatFailsAloneIsCharged",
		Breaks: "a message that fails several times in a row opens the breaker",
		Old:    "	if f.last != uuid {",
		New:    "	if true {",
	},
	{
		Name: "B48", File: "board/breaker.go", Trouble: "blindness", Test: "TestASuccessStartsTheCountAgain",
		Breaks: "a success does not start the count of failures again",
		Old:    "	t.unknown, t.publisher.failures = failures{}, failures{}\n",
		New:    "",
	},
	{
		Name: "B56", File: "board/breaker.go", Trouble: "blindness", Test: "TestTopicsOfAPublisherFailTogether",
		Breaks: "failures on several topics of a publisher do not count together",
		Old:    "		t.publisher.add(c.Row.UUID)\n",
		New:    "",
	},
	{
		Name: "B46", File: "board/results.go", Trouble: "blindness", Test: "TestScripts/outage-late",
		Breaks: "the failure of a trial whose message was published late ends no trial",
		Old:    "r.Verdict == Unknown && !l.published(c.Row.ID):",
		New:    "r.Verdict == Unknown:",
	},
	{
		Name: "B47", File: "board/shadow.go", Trouble: "outage", Test: "TestKeyWhoseFirstIsGoneIsReadAgain",
		Breaks: "what is refused with the first of its key waits for the topic of that one",
		Old:    "if t != k.topic && !k.isPen() {",
		New:    "if false {",
	},
	{
		Name: "B49", File: "board/board.go", Trouble: "whatever", Test: "TestNotQuietWhileAHeadWasPutOff",
		Breaks: "it is quiet while a head is late",
		Old:    "len(b.settled) > 0 || b.isLate() {",
		New:    "len(b.settled) > 0 {",
	},
	{
		Name: "B50", File: "board/board.go", Trouble: "whatever", Test: "TestNotQuietWhileWhatWasSettledComesAgain",
		Breaks: "it is quiet though a read took what came again for what was settled during it",
		Old:    "len(b.settled) > 0 || b.isLate() {",
		New:    "b.isLate() {",
	},
	{
		Name: "B51", File: "board/keys.go", Trouble: "outage", Test: "TestLowerIDsGoFirst",
		Breaks: "what was committed late goes behind what is in memory of its key",
		Old:    "case due || !k.joinsBefore(r.ID):",
		New:    "case true:",
	},
	{
		Name: "B57", File: "board/keys.go", Trouble: "whatever", Test: "TestWhatFallsDueGoesBehind",
		Breaks: "what falls due goes before what is there",
		Old:    "case due || !k.joinsBefore(r.ID):",
		New:    "case !k.joinsBefore(r.ID):",
	},
	{
		Name: "B52", File: "board/topics.go", Trouble: "outage", Test: "TestTrialsThatMayNotGo",
		Breaks: "the trial of a topic that an operator has paused stays in memory",
		Old:    "if t.byOperator && t.trial != nil && t.trial.call.state == pending {",
		New:    "if false {",
	},
	{
		Name: "B53", File: "board/asks.go", Trouble: "outage", Test: "TestTrialsThatMayNotGo",
		Breaks: "a topic is tried that has no place for a call",
		Old:    "(b.hasPlace(t) || !b.isWaitedFor(t))\n",
		New:    "true\n",
	},
	{
		Name: "B54", File: "board/calls.go", Trouble: "outage", Test: "TestTrialsThatMayNotGo",
		Breaks: "a place that is free again brings no head of a paused topic",
		Old:    "if t.calls == b.cfg.Concurrency-1 && t.wantsTrial() {",
		New:    "if false {",
	},
	{
		Name: "B55", File: "board/acts.go", Trouble: "operators", Test: "TestScripts/sent-again-queued",
		Breaks: "the attempt from before an operator's act is published as well",
		Old:    "known != nil && known.Generation != r.Generation && known.call.state == pending {",
		New:    "false {",
	},
	{
		Name: "M10", File: "board/lanes.go", Trouble: "whatever", First: 0,
		Breaks: "a lane that was loaded wakes no read",
		Old: `	b.retryMoved = true
	b.effects.Read = true`,
		New:    `	b.retryMoved = true`,
		Strike: "the reader that loads a lane reads next in any case",
	},
}
