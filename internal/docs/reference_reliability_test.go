package docs

import (
	"cmp"
	"fmt"
	"go/ast"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// saysWhatItShows tells a comment that is about the test from none, and from one of the tests beside it.
func saysWhatItShows(comment, test string) bool {
	rest, own := strings.CutPrefix(comment, test)
	return own && len(strings.Fields(rest)) >= 4
}

// testsOf finds all tests, with their comments and files.
func testsOf(t *testing.T) (comments, files map[string]string) {
	comments, files = map[string]string{}, map[string]string{}
	err := filepath.WalkDir(".", func(file string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() && strings.HasPrefix(e.Name(), ".") && file != "." {
			return cmp.Or(err, fs.SkipDir)
		}
		if !strings.HasSuffix(file, "_test.go") {
			return nil
		}
		for _, decl := range parsed(t, file).Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				comments[f.Name.Name], files[f.Name.Name] = inTable(f.Doc), filepath.ToSlash(file)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return comments, files
}

// reliability lists each promise of the README with what proves it, and what does not.
func reliability(t *testing.T) string {
	var b strings.Builder
	b.WriteString(`# Reliability

For reviewers of the README's promises. Afterwards you know what fails when one is broken, and what nothing proves.
Written by ` + "`make reference`" + `.

| proof | what it is |
|---|---|
| test | runs on real servers with the race detector, or on a model where it says so, in each run of CI |
| invariant | is looked at after each step of the schedules of ` + "`make simulate`" + `, of which CI makes some |
| mutant | a rule of the forwarder: with it broken, schedules or tests fail, as ` + "`make mutants`" + ` shows |
`)
	promises := regexp.MustCompile(`(?m)^\| \*\*\[(.*?)\]\(docs/reference/reliability\.md#(.*?)\)\*\*`).
		FindAllStringSubmatch(read(t, "README.md"), -1)
	if len(promises) != len(proofs) {
		t.Errorf("the README makes %d promises, and proofs has %d", len(promises), len(proofs))
	}
	comments, files := testsOf(t)
	invariants, mutants := invariantsOf(t), mutantsOf(t)
	for _, found := range promises {
		promise := found[1]
		p, proved := proofs[promise]
		if !proved {
			t.Errorf("nothing proves what the README promises: %s", promise)
		}
		if anchor := strings.ReplaceAll(strings.ReplaceAll(strings.ToLower(promise), ",", ""), " ", "-"); found[2] != anchor {
			t.Errorf("the README links the proof of %q to #%s, and not to #%s", promise, found[2], anchor)
		}
		fmt.Fprintf(&b, "\n## %s\n\n| proof | what it shows |\n|---|---|\n", promise)
		for _, test := range p.tests {
			shows, exists := comments[test]
			switch {
			case !exists:
				t.Errorf("%s is to prove %q, and there is no such test", test, promise)
			case !saysWhatItShows(shows, test):
				t.Errorf("the comment of %s does not begin with its name and say what it shows: %q", test, shows)
			}
			fmt.Fprintf(&b, "| [%s](../../%s) | %s |\n", test, files[test], shows)
		}
		p.writeModel(t, &b, invariants, mutants)
	}
	b.WriteString("\n## Everything at once\n\n`make chaos ARGS='5m 23'`, with its seed and commit, printed:\n\n```\n" +
		read(t, "integration_test/testdata/chaos.txt") + "```\n")
	b.WriteString("\n## Inbound, everything at once\n\n" +
		"`OUTBOX_LONG=1 go test -timeout 90m -run 'TestInboundCampaign|TestJetStreamCampaign'` has up to four processes\n" +
		"[handle by key](../guides/inbound-kafka.md) what eight partitions hold. Each second one of them is\n" +
		"killed, frozen for longer than its session, ended or started, and the broker is killed each half of\n" +
		"a minute. One key of a hundred fails until all others are handled; behind JetStream, which has no\n" +
		"partitions, in the first seconds of each of up to three processes. \"Parked\" counts copies, too.\n" +
		"It printed:\n\n```\n" + read(t, "integration_test/testdata/inbound.txt") + "```\n")
	b.WriteString("\n## Leaves at volume\n\n" +
		"`OUTBOX_LONG=1 go test -run TestLeavesAtVolume` has processes forward messages\n" +
		"with order, blocked keys and delays, and roll an [outbox in partitions](../run/partitions.md), and\n" +
		"kills them. It printed:\n\n```\n" + read(t, "integration_test/testdata/leaves.txt") + "```\n")
	b.WriteString("\n## Brokers that are clusters\n\n" +
		"`OUTBOX_LONG=1 go test -v -run 'ClusterLosesANode|Reconcile.*Cluster'` has a forwarder publish to Kafka and\n" +
		"JetStream of three nodes, each with a replica of the topic, while the leader is killed, frozen, or\n" +
		"cut off from the other two and not from clients. Then all nodes come back without the end of what\n" +
		"they had acknowledged, and [Reconcile](../run/runbook.md) finds it. It printed:\n\n```\n" +
		read(t, "integration_test/testdata/clusters.txt") + "```\n")
	b.WriteString(`
## What is not proved of any of them

- That a disk keeps what it has synced, and that a broker keeps what it has acknowledged.
- Clocks that run at very different speeds on two machines: they may cost duplicates, and no order.
- Brokers in clusters of more than three nodes, and that are cut into more than two parts.
`)
	b.WriteString(brokenRules(mutants))
	return b.String()
}
