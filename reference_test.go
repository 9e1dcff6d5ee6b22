package outbox

import (
	"cmp"
	"fmt"
	"go/ast"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestReference keeps docs/reference/configuration.md, errors.md, reliability.md and the packages of architecture.md
// what the code, its comments and the README say; `make reference` writes them.
func TestReference(t *testing.T) {
	for name, want := range map[string]string{
		"configuration.md": configuration(t), "errors.md": errorsAndLogs(t), "reliability.md": reliability(t),
		"architecture.md": architecture(t),
	} {
		file := filepath.Join("docs", "reference", name)
		if os.Getenv("OUTBOX_WRITE_REFERENCE") != "" {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if is, err := os.ReadFile(file); err != nil || string(is) != want {
			t.Errorf("%s is not what the code says (%v): run make reference", file, err)
		}
	}
}

// sourcesOf parses the files of a package that are no tests.
func sourcesOf(t *testing.T, dir string) (files []*ast.File) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.DeleteFunc(names, func(name string) bool { return !isSource(name) }) {
		files = append(files, parsed(t, name))
	}
	return files
}

// declared calls each for all specs of a package, with the comment of each.
func declared[S ast.Spec](files []*ast.File, each func(spec S, doc *ast.CommentGroup)) {
	for _, file := range files {
		for _, decl := range file.Decls {
			if d, ok := decl.(*ast.GenDecl); ok {
				for _, spec := range d.Specs {
					if s, ok := spec.(S); ok {
						each(s, d.Doc)
					}
				}
			}
		}
	}
}

// importName is how a package is called in code, with the folder where it is ambiguous.
func importName(dir string) string {
	if dir == "." {
		return "outbox"
	}
	return path.Base(dir)
}

// inTable writes a comment as the cell of a table.
func inTable(docs ...*ast.CommentGroup) string {
	for _, doc := range docs {
		if text := strings.Join(strings.Fields(doc.Text()), " "); text != "" {
			return strings.ReplaceAll(text, "|", `\|`)
		}
	}
	return ""
}

func configuration(t *testing.T) string {
	var b strings.Builder
	b.WriteString(`# Configuration

For developers who set a field. Afterwards you know its default and when to change it. Zero values are good defaults; -1
switches off where that makes sense. Written by ` + "`make reference`" + ` from the comments in the code.
`)
	for _, dir := range apiPackages(t) {
		declared(sourcesOf(t, dir), func(spec *ast.TypeSpec, doc *ast.CommentGroup) {
			fields, ok := spec.Type.(*ast.StructType)
			if !ok || !spec.Name.IsExported() || !strings.HasSuffix(spec.Name.Name, "Config") && spec.Name.Name != "TxOptions" {
				return
			}
			fmt.Fprintf(&b, "\n## %s.%s\n\n%s\n\n| field | what it does |\n|---|---|\n", importName(dir), spec.Name.Name,
				inTable(spec.Doc, doc))
			for _, field := range fields.Fields.List {
				var names []string
				for _, name := range field.Names {
					if name.IsExported() {
						names = append(names, "`"+name.Name+"`")
					}
				}
				if len(field.Names) == 0 {
					names = append(names, "`"+embedded(field.Type)+"`")
				}
				if len(names) > 0 {
					fmt.Fprintf(&b, "| %s | %s |\n", strings.Join(names, ", "),
						cmp.Or(inTable(field.Doc, field.Comment), "as in the other configurations"))
				}
			}
		})
	}
	return b.String()
}

func embedded(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return embedded(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return "?"
}

// everyPackage calls each for all packages that a service may run, in the order of their names.
func everyPackage(t *testing.T, each func(dir string, files []*ast.File)) {
	skipped := slices.DeleteFunc(slices.Clone(notPublic), func(name string) bool {
		return name == "internal" || name == "cmd"
	})
	skipped = append(skipped, "services", "uitest", "pictures", "release", "outboxtest", "memory")
	err := filepath.WalkDir(".", func(dir string, e fs.DirEntry, err error) error {
		switch {
		case err != nil || !e.IsDir():
			return err
		case dir != "." && (strings.HasPrefix(e.Name(), ".") || slices.Contains(skipped, e.Name())):
			return fs.SkipDir
		}
		if files := sourcesOf(t, dir); len(files) > 0 {
			each(filepath.ToSlash(dir), files)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// proofs are the tests that hold each promise of the README. A promise without one fails, and so does one that is not
// there any more.
var proofs = map[string][]string{
	"Atomic": {
		"TestKilledAtEveryStep", "TestPostgresKilled", "TestUnknownCommitIsHarmless", "TestSavepointThatCannotBeUndone",
		"TestRouterCloseLetsHandlersCommit",
	},
	"Nothing lost, nothing invented": {
		"TestChaos",
		"TestOrder", "TestBadDayAddsUp", "TestKilledAtEveryStep", "TestCommitsThatACrashLost", "TestServerWithOtherRows",
		"TestModelKeepsOrderAndLosesNothing", "TestKafkaKeepsWhatItAcknowledges",
	},
	"Applied once": {
		"TestInboxHandlesAMessageOnce", "TestInboxConcurrentDeliveriesApplyOnce", "TestServicesShareAnInbox",
		"TestInboxPassedTwice", "TestBadDayAddsUp", "TestHistoryOfAQueue",
		"TestInboundOrderUnderKill", "TestInboundOrderUnderStop",
	},
	"Order per key": {
		"TestOrder", "TestOrderOfASlowInsert", "TestOrderOverLibPQ", "TestOrderThroughPgBouncer",
		"TestOrderControlForgetfulFetch", "TestOrderControlDefaultWithoutXid",
		"TestStaleOwner", "TestBlockedKeyOutlivesItsOwner", "TestModelKeepsOrderAndLosesNothing",
		"TestInboundOrderUnderRebalance", "TestInboundControlWithoutKeys",
	},
	"A bad message blocks only its key": {
		"TestRejectedMessageIsTriedAgain", "TestKeyGoesOnWithoutItsFirstMessage", "TestManyBlockedKeysAtOnce",
		"TestDeathNeedsAttemptsAndAge",
		"TestInboundFailingKeyBlocksNothingElse", "TestInboundWindowFull",
	},
	"An outage charges no attempt": {
		"TestUnavailableTopicPauses", "TestUnavailableAfterRejection", "TestAnOutageThatNobodyRecognisesKillsNothing",
	},
}

// saysWhatItShows tells a comment that is about the test from none, and from one of the tests beside it.
func saysWhatItShows(comment, test string) bool {
	rest, own := strings.CutPrefix(comment, test)
	return own && len(strings.Fields(rest)) >= 4
}

// reliability lists each promise of the README with the tests that hold it, and what each of them says of itself.
func reliability(t *testing.T) string {
	comments, files := map[string]string{}, map[string]string{}
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
	var b strings.Builder
	b.WriteString(`# Reliability

For reviewers of the README's promises. Afterwards you know which tests fail when one is broken. They run on real
servers, with the race detector, in each run of CI. Written by ` + "`make reference`" + `.
`)
	promises := regexp.MustCompile(`(?m)^\| \*\*\[(.*?)\]\(docs/reference/reliability\.md#(.*?)\)\*\*`).
		FindAllStringSubmatch(read(t, "README.md"), -1)
	if len(promises) != len(proofs) {
		t.Errorf("the README makes %d promises, and proofs has %d", len(promises), len(proofs))
	}
	known := slices.Collect(maps.Keys(proofs))
	for _, found := range promises {
		promise := found[1]
		if !slices.Contains(known, promise) {
			t.Errorf("nothing proves what the README promises: %s", promise)
		}
		if anchor := strings.ReplaceAll(strings.ReplaceAll(strings.ToLower(promise), ",", ""), " ", "-"); found[2] != anchor {
			t.Errorf("the README links the proof of %q to #%s, and not to #%s", promise, found[2], anchor)
		}
		fmt.Fprintf(&b, "\n## %s\n\n| test | what it shows |\n|---|---|\n", promise)
		for _, test := range proofs[promise] {
			shows, exists := comments[test]
			switch {
			case !exists:
				t.Errorf("%s is to prove %q, and there is no such test", test, promise)
			case !saysWhatItShows(shows, test):
				t.Errorf("the comment of %s does not begin with its name and say what it shows: %q", test, shows)
			}
			fmt.Fprintf(&b, "| [%s](../../%s) | %s |\n", test, files[test], shows)
		}
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
	b.WriteString(`
## What is not proved

- That a disk keeps what it has synced, and that a broker keeps what it has acknowledged.
- Clocks that run at very different speeds on two machines: they may cost duplicates, and no order.
- Brokers that are clusters, and network partitions between their nodes.
`)
	b.WriteString(brokenRules(t))
	return b.String()
}
