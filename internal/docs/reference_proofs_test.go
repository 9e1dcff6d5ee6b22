package docs

import (
	"fmt"
	"go/ast"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// proof is what holds a promise.
type proof struct {
	tests      []string
	invariants []string // what the model of the forwarder says when it is broken
	mutants    []string // rules of the forwarder whose breaking the model finds
	unproved   []string
}

// proofs hold the promises of the README. A promise without one fails, and so does one that is not there any more.
var proofs = map[string]proof{
	"Atomic": {
		tests: []string{
			"TestKilledAtEveryStep", "TestPostgresKilled", "TestUnknownCommitIsHarmless", "TestSavepointThatCannotBeUndone",
			"TestRouterCloseLetsHandlersCommit",
		},
		unproved: []string{
			"no model: the handler's transaction is PostgreSQL's, and these tests kill it at each step",
		},
	},
	"Nothing lost, nothing invented": {
		tests: []string{
			"TestChaos",
			"TestOrder", "TestBadDayAddsUp", "TestKilledAtEveryStep", "TestCommitsThatACrashLost", "TestServerWithOtherRows",
			"TestModelKeepsOrderAndLosesNothing", "TestEachOperationWithEachFault", "TestKafkaKeepsWhatItAcknowledges",
		},
		invariants: []string{
			"row %v was never sent",
			"never settled: %s; %v",
			"row %d (%s) is published but was never committed",
			"forwarder %d: the sweep found row %d, which nobody knew of",
			"forwarder %d does not know row %d any more, whose success is not settled",
			"forwarder %d was told the success of row %d, and nobody got it to settle",
			"forwarder %d %s, and row %v waits",
		},
		mutants: []string{"W1", "W3", "W4", "W13", "B25", "B12", "L11", "M5", "S11"},
		unproved: []string{
			"that a disk keeps what it has synced, and that a broker keeps what it has acknowledged",
		},
	},
	"Applied once": {
		tests: []string{
			"TestInboxHandlesAMessageOnce", "TestInboxConcurrentDeliveriesApplyOnce", "TestServicesShareAnInbox",
			"TestInboxPassedTwice", "TestBadDayAddsUp", "TestHistoryOfAQueue",
			"TestInboundOrderUnderKill", "TestInboundOrderUnderStop",
		},
		invariants: []string{
			"row %v is sent twice, though nothing went wrong",
			"row %d (%s) is published again after its success was told",
		},
		mutants: []string{"B1", "B2", "B35"},
		unproved: []string{
			"no model of the inbox and of package queue: which moments meet is up to real servers, whose histories are checked",
		},
	},
	"Order per key": {
		tests: []string{
			"TestOrder", "TestOrderOfASlowInsert", "TestOrderOverLibPQ", "TestOrderThroughPgBouncer",
			"TestOrderControlForgetfulFetch", "TestOrderControlDefaultWithoutXid",
			"TestStaleOwner", "TestBlockedKeyOutlivesItsOwner", "TestModelKeepsOrderAndLosesNothing",
			"TestInboundOrderUnderRebalance", "TestInboundControlWithoutKeys",
		},
		invariants: []string{
			"row %v is sent before row %v, whose transaction had committed before it was inserted",
			"row %d is published while row %d of the same key is under way",
			"row %d is published after the lease of forwarder %d",
			"row %d is published in lane %d, epoch %d, which is not ours or is being handed back",
			"forwarder %d starts lane %d of epoch %d, which it lost while it loaded",
			"row %v is published before row %v, which an operator brought back together with it",
		},
		mutants: []string{"W5", "B3", "B4", "B6", "B13", "B18", "B37", "L13", "M1", "M3", "M15"},
		unproved: []string{
			"clocks that run at very different speeds on two machines: they may cost duplicates, and no order",
		},
	},
	"A bad message blocks only its key": {
		tests: []string{
			"TestRejectedMessageIsTriedAgain", "TestKeyGoesOnWithoutItsFirstMessage", "TestManyBlockedKeysAtOnce",
			"TestDeathNeedsAttemptsAndAge",
			"TestInboundFailingKeyBlocksNothingElse", "TestInboundWindowFull",
		},
		invariants: []string{
			"%v waits, though only topic %q is dead, %q hangs, and %q are paused; %v",
			"row %d is published beside %d calls of its topic and %d in all",
		},
		mutants: []string{"B16", "B22", "B31", "S9", "S10"},
		unproved: []string{
			"no model of subscriber/kafka and subscriber/nats: their order and their parks have tests on real brokers alone",
		},
	},
	"An outage charges no attempt": {
		tests: []string{
			"TestUnavailableTopicPauses", "TestUnavailableAfterRejection", "TestAnOutageThatNobodyRecognisesKillsNothing",
		},
		invariants: []string{
			"forwarder %d: row %d is charged, and nothing says that it is at fault",
		},
		mutants: []string{"B10", "B26"},
		unproved: []string{
			"errors that no client has returned in these tests: what nobody recognises is judged by what else fails",
		},
	},
}

// accounts are what the model looks at besides: whether the forwarder counts right, wakes whom it must, keeps to its
// bounds, and does what Drain says. A check of the model is one of these, or proves a promise.
var accounts = []string{
	"forwarder %d answers a Drain while another is dead whose lease is not over",
	"forwarder %d answers a Drain while lanes load: %v",
	"forwarder %d answers a Drain with topic %s, which no operator has paused",
	"forwarder %d answers a Drain, and lanes are missing to its share",
	"forwarder %d counts %+v, with %d calls under way, %d of them hung",
	"forwarder %d counts %d unsettled, and %d are being settled",
	"forwarder %d has %+v in the end",
	"forwarder %d has %d rows in memory, with room for %d",
	"forwarder %d has lane %d as %+v, and reads it under epoch %d",
	"forwarder %d has parked %d ids of %d",
	"forwarder %d has stopped with %+v",
	"forwarder %d has stopped, and %d calls of Drain still wait",
	"forwarder %d has too many calls under way: %+v",
	"forwarder %d is not quiet in the end: %+v",
	"forwarder %d is to give lane %d back again",
	"forwarder %d knows %d and %d rows of lane %d in the end",
	"forwarder %d reads lane %d of epoch %d, which the board does not have",
	"forwarder %d remembers %+v in the end",
	"forwarder %d says that %d calls are under way, and %d are",
	"forwarder %d says that it stops to a Drain, and does not stop",
	"forwarder %d starts %d workers, though its lease is over: they end, and others start",
	"forwarder %d stops, and is to take %v and %v",
	"forwarder %d: %s",
	"forwarder %d: a read is due, and nobody wakes the reader",
	"forwarder %d: an effect names row %d, which is not under way",
	"forwarder %d: lane %d is called free while nobody took the success of row %d",
	"forwarder %d: lane %d is called free while row %d is under way",
	"forwarder %d: lane %d is called free while the failure of row %d is unsettled",
	"forwarder %d: lane %d is called free while the success of row %d is unsettled",
	"forwarder %d: lane %d may be given back, and nobody wakes the keeper",
	"forwarder %d: lane %d of epoch %d is called free, which is not being handed back",
	"forwarder %d: row %d is not to time out, and has not returned",
	"forwarder %d: row %d is to time out, which has returned",
	"forwarder %d: something is due, and nobody wakes the timer",
	"forwarder %d: the failure of row %d is to be settled, which was not told, or twice",
	"forwarder %d: the success of row %d is to be settled, which was not told, or twice",
	"row %d (%s) is published without its payload",
	"row %d (%s) is said to come again, and was never handed out",
	"row %d is published while the same call is under way",
	"row %d is published, whose topic %s an operator has paused",
}

// invariantsOf finds what the model says when a check fails, and in which file.
func invariantsOf(t *testing.T) map[string]string {
	files, err := filepath.Glob("forwarder/internal/board/*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("files of the model %v: %v", files, err)
	}
	found := map[string]string{}
	for _, file := range files {
		ast.Inspect(parsed(t, file), func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			if f, ok := call.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "failf" && literal(call.Args[0]) != "" {
				found[literal(call.Args[0])] = file
			}
			return true
		})
	}
	listed := slices.Clone(accounts)
	for _, p := range proofs {
		listed = append(listed, p.invariants...)
	}
	for text := range found {
		if !slices.Contains(listed, text) {
			t.Errorf("the model says %q when a check fails: list it with the promise that it is about, or in accounts", text)
		}
	}
	for _, text := range listed {
		if found[text] == "" {
			t.Errorf("%q is listed, and no check of the model says it", text)
		}
	}
	return found
}

var verbs = regexp.MustCompile(`%[a-z+]+`)

// writeModel writes what the model proves, and what nothing does.
func (p proof) writeModel(t *testing.T, b *strings.Builder, invariants map[string]string,
	mutants map[string]map[string]string) {
	for _, text := range p.invariants {
		says := strings.TrimPrefix(strings.TrimSuffix(text, "; %v"), "forwarder %d: ")
		fmt.Fprintf(b, "| [invariant](../../%s) | never \"%s\" |\n", invariants[text], verbs.ReplaceAllString(says, "…"))
	}
	for _, name := range p.mutants {
		switch m := mutants[name]; {
		case m == nil:
			t.Errorf("mutant %s is to be found, and there is none", name)
		case m["Strike"] != "":
			t.Errorf("mutant %s is to be found, and need not be", name)
		default:
			fmt.Fprintf(b, "| mutant %s of [%s](../../forwarder/internal/%s) | found: %s |\n", name, m["File"], m["File"],
				m["Breaks"])
		}
	}
	for _, text := range p.unproved {
		fmt.Fprintf(b, "| not proved | %s |\n", text)
	}
}
