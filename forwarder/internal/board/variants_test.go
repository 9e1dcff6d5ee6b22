package board_test

import (
	"testing"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/window"
)

// variant is what is broken on purpose: each breaks one rule of the protocol.
type variant struct {
	database faults
	trouble  trouble // looked for among schedules with this: elsewhere it breaks nothing

	// Reading.
	readsOverlap  bool // so a rewind, and unparking, take effect during a read
	plain         bool // id > mark, without any look at transactions
	noSegments    bool // transactions above the snapshot's xmax are not tracked
	noConsent     bool // a bound is raised although the next read may not list its transaction
	fullGoesOn    bool // a lane that was full is taken for read to its end
	otherEpoch    bool // an answer is taken over by whatever term the lane has now
	forgetsAtOnce bool // what was settled is forgotten at the settling
	noRewind      bool // a shadow is cleared without a rewind
	noSweep       bool
	noLook        bool // nobody sees that an operator settled what a key waits for

	// Heads.
	headsNotLoaded    bool
	headsBeforeTake   bool
	heldOnceSettled   bool // a key is held from the settling of the failure on
	noRecheck         bool
	unparksFromTheTop bool // not the lowest id of its key first
	triesFromTheTop   bool // with a trial that is not the first of its key
	bitsIgnored       bool // what is in the shadow does not stop later rows of its keys
	shadowsTooHigh    bool

	// Results.
	lateSuccessIgnored  bool
	lateErrorCharged    bool
	timeOutTwice        bool
	freeAtOnce          bool // a lane is given back with results unsettled
	rejectedInOtherTerm bool
	stopDropsResults    bool
}

type trouble int

const (
	whatever trouble = iota
	theft
	crashes
	operators
	outage // of a topic, and operators
)

// among makes a schedule one of those that the variant is looked for among.
func (v variant) among(m *model) {
	if v.trouble == whatever {
		return
	}
	m.calm = false
	switch v.trouble {
	case theft:
		m.kills = true
	case crashes:
		m.crashes = true
	case operators:
		m.operators = true
	case outage:
		m.operators, m.deadTopic = true, m.topics[0]
	}
}

func (v variant) spoilQuery(f *forwarder, q *query) {
	switch {
	case v.plain:
		q.xids, q.los = nil, nil
	case v.noSegments:
		q.los = nil
	case v.noConsent && f.writers != nil:
		for i, xid := range q.xids {
			if !f.writers[uint32(xid)] {
				q.bounds[i] = max(q.bounds[i], f.lastSeq)
			}
		}
	}
}

func (v variant) spoilAnswer(f *forwarder, r *reading, a *window.Answer) {
	switch {
	case v.fullGoesOn:
		a.Counts = [window.Lanes]int64{}
	case v.otherEpoch:
		for n := range r.req.Epochs {
			if _, epoch := f.window.Mark(int16(n)); epoch != 0 {
				r.req.Epochs[n] = epoch
			}
		}
	}
}

// enoughSeeds are those within which each broken variant must be found.
const enoughSeeds = 500

func TestModelFindsEveryBrokenVariant(t *testing.T) {
	for name, v := range map[string]variant{
		"rewind or unpark during a read":               {readsOverlap: true},
		"plain id > mark":                              {plain: true},
		"segments dropped":                             {noSegments: true},
		"xmax for the next transaction id":             {database: faults{nextIsXmax: true}},
		"bound raised without the next read's consent": {noConsent: true},
		"mark not moved to the last id of a full lane": {fullGoesOn: true},
		"answer applied to a lane of another epoch":    {trouble: theft, otherEpoch: true},
		"forgotten at the settling":                    {forgetsAtOnce: true},
		"held only from the settling on":               {heldOnceSettled: true},
		"heads not loaded":                             {headsNotLoaded: true},
		"heads loaded before the take":                 {trouble: theft, headsBeforeTake: true},
		"epoch kept on retake":                         {trouble: crashes, database: faults{epochKept: true}},
		"failure not fenced":                           {trouble: theft, database: faults{unfenced: true}},
		"settled by id in a new life":                  {trouble: crashes, database: faults{settleByID: true}},
		"unpark not the lowest":                        {unparksFromTheTop: true},
		"trial not the first of its key":               {triesFromTheTop: true},
		"row kept although its bit is set":             {bitsIgnored: true},
		"shadow cleared without a rewind":              {noRewind: true},
		"lowest id of a shadow too high":               {shadowsTooHigh: true},
		"late success ignored":                         {lateSuccessIgnored: true},
		"late error charged":                           {lateErrorCharged: true},
		"time-out counted twice":                       {timeOutTwice: true},
		"free with a result unsettled":                 {freeAtOnce: true},
		"rejected with the epoch of another term":      {trouble: theft, rejectedInOtherTerm: true},
		"recheck left out":                             {trouble: operators, noRecheck: true},
		"sweep left out":                               {trouble: operators, noSweep: true},
		"first of a waiting key not looked at":         {trouble: outage, noLook: true},
		"stop that drops results":                      {stopDropsResults: true},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(enoughSeeds) {
				if problem, _ := (schedule{seed: seed, steps: allSteps(), variant: v}).run(false); problem != "" {
					t.Logf("seed %d: %s", seed, problem)
					return
				}
			}
			t.Errorf("not found within %d seeds", enoughSeeds)
		})
	}
}
