package integration_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
)

// documents returns the pages for users, by their path from the root.
func documents(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "examples/*.md", "publisher/*/*.md"} {
		files, err := filepath.Glob(filepath.Join("..", pattern))
		require.NoError(t, err)
		for _, file := range files {
			content, err := os.ReadFile(file)
			require.NoError(t, err)
			pages[filepath.ToSlash(strings.TrimPrefix(file, ".."+string(filepath.Separator)))] = string(content)
		}
	}
	require.Contains(t, pages, "README.md")
	require.Contains(t, pages, "docs/run/sql.md")
	return pages
}

// everyTest returns the names of all tests and benchmarks of the repository.
func everyTest(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Example|Benchmark)\w*)\(`)
	require.NoError(t, filepath.WalkDir("..", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && entry.Name() == ".cache" {
			return fs.SkipDir
		}
		if !strings.HasSuffix(file, "_test.go") {
			return nil
		}
		source, err := os.ReadFile(file)
		for _, found := range declared.FindAllStringSubmatch(string(source), -1) {
			names[found[1]] = true
		}
		return err
	}))
	return names
}

// TestDocumentsNameWhatExists: each test and each target of the Makefile that a page names exists.
func TestDocumentsNameWhatExists(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("../Makefile")
	require.NoError(t, err)
	tests := everyTest(t)
	code := regexp.MustCompile("(?s)```(?:sh|bash|console)?\n(.*?)```|`([^`\n]+)`")
	command := regexp.MustCompile(`(?m)(?:^|&& |: )make ((?:[a-z][a-z-]*(?: |$))+)`)
	named := regexp.MustCompile(`(?:^|[^.\w])((?:Test|Benchmark)[A-Z]\w+)`) // not outboxtest.TestPublisher
	for page, content := range documents(t) {
		for _, block := range code.FindAllStringSubmatch(content, -1) {
			for _, found := range command.FindAllStringSubmatch(block[1]+block[2], -1) {
				for target := range strings.FieldsSeq(found[1]) {
					assert.Regexp(t, `(?m)^`+target+`:`, string(makefile), "%s: make has no target %s", page, target)
				}
			}
		}
		for _, name := range named.FindAllStringSubmatch(content, -1) {
			assert.True(t, tests[name[1]], "%s names %s, which does not exist", page, name[1])
		}
	}
}

// TestDocumentsQuoteTheBenchmark: each row of docs/reference/performance.md is one of the benchmark.
func TestDocumentsQuoteTheBenchmark(t *testing.T) {
	t.Parallel()
	sources, err := filepath.Glob("../bench/*.go")
	require.NoError(t, err)
	rows := map[string]bool{}
	for _, file := range sources {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, row := range regexp.MustCompile(`\{\s*name:\s+"(\w+)",\s+(?:what|floor):`).
			FindAllStringSubmatch(string(source), -1) {
			rows[row[1]] = true
		}
	}
	require.Greater(t, len(rows), 15)
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)`: .*\\| ([0-9.]+|n/a) \\| [0-9.]+ \\|$").
		FindAllStringSubmatch(documents(t)["docs/reference/performance.md"], -1) {
		assert.True(t, rows[row[1]], "docs/reference/performance.md has a row that the benchmark has not: %s", row[1])
	}
}

var (
	anExample = regexp.MustCompile("(?ms)^```.*?^```$")
	aLink     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	aHeading  = regexp.MustCompile(`(?m)^#+ (.*)$`)
	noAnchor  = regexp.MustCompile(`[^\w\- ]`)
)

// TestDocumentsLinks: each link of a page leads to an existing file and heading.
func TestDocumentsLinks(t *testing.T) {
	t.Parallel()
	pages := documents(t)
	for page, content := range pages {
		for _, found := range aLink.FindAllStringSubmatch(anExample.ReplaceAllString(content, ""), -1) {
			if strings.Contains(found[1], ":") {
				continue // on another site
			}
			file, anchor, _ := strings.Cut(found[1], "#")
			to := path.Join(path.Dir(page), file)
			if file == "" {
				to = page
			}
			_, err := os.Stat(filepath.Join("..", to))
			assert.NoError(t, err, "%s links to %s", page, found[1])
			if anchor != "" {
				assert.Contains(t, anchorsOf(pages[to]), anchor, "%s links to %s", page, found[1])
			}
		}
	}
}

// anchorsOf returns the anchors that GitHub generates for headings.
func anchorsOf(content string) (all []string) {
	for _, found := range aHeading.FindAllStringSubmatch(content, -1) {
		all = append(all, strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(found[1]), ""), " ", "-"))
	}
	return all
}

// TestFilesAreFoundByTheirPromise: each file begins with one prefix of the map in doc.go, and each prefix has a file.
func TestFilesAreFoundByTheirPromise(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	used := map[string]bool{}
	for _, line := range regexp.MustCompile(`(?m)^//   - ([a-z_]+_): \S`).FindAllStringSubmatch(string(source), -1) {
		assert.NotContains(t, used, line[1], "doc.go has it twice")
		used[line[1]] = false
	}
	require.NotEmpty(t, used)
	for _, file := range files {
		var of []string
		for prefix := range used {
			if strings.HasPrefix(file, prefix) {
				of, used[prefix] = append(of, prefix), true
			}
		}
		assert.Len(t, of, 1, "%s: begin its name with one prefix of doc.go", file)
	}
	for prefix, is := range used {
		assert.True(t, is, "doc.go: no file begins with %s", prefix)
	}
}

// notHere lists commands of the documents that need a broker or partitions, or run until stopped, with the tests that
// run them.
var notHere = map[string]string{
	"forward": "TestOutboxctlForwards", "serve": "TestOutboxctlServes", "reconcile": "TestOutboxctlReconciles",
	"completion": "TestDocument", "partitions": "TestOutboxctlPartitions", "redrive": "TestRedriveOfATopic",
}

// TestDocumentsCommandsAct runs the documented outboxctl commands on messages for which they are meant: none fails, and
// each act finds its messages. The text in docs/reference/outboxctl.md is each command's help.
func TestDocumentsCommandsAct(t *testing.T) {
	h := onPgx(t)
	newOldForwarder(t, moveTables[0], h.url)
	h.exec(t, `CREATE TABLE my_outbox (id bigserial PRIMARY KEY, event_id uuid DEFAULT gen_random_uuid(), aggregate_id int, topic text, body jsonb, headers jsonb,
		run_at timestamptz, sent_at timestamptz)`)
	h.exec(t, `INSERT INTO my_outbox (aggregate_id, topic, body, headers) VALUES (1, 'orders', '{}', '{}')`)
	prepare := func() (group string) {
		h.exec(t, "DELETE FROM outbox")
		h.exec(t, `INSERT INTO outbox (id, uuid, topic, key, payload, created_at, due_at, attempts, last_error, published_at, dead_at) VALUES
			(42, 'dead', 'bookings', '', '', now(), now(), 10, 'unknown topic', NULL, now()), (43, 'failing', 'bookings', 'order/7', '', now(), now() + interval '1 hour', 1, 'away', NULL, NULL),
			(44, 'done', 'bookings', '', '', now(), NULL, 0, NULL, now(), NULL)`)
		h.exec(t, "DELETE FROM inbox")
		h.exec(t, `INSERT INTO inbox (consumer, message_id, attempts, last_error, dead_at)
			VALUES ('booking/book', 'UUID', 10, 'unknown topic', now())`)
		h.exec(t, `INSERT INTO outbox (id, uuid, topic, payload, published_at, metadata) VALUES (45, 'letter', 'dead_letters', '', now(),
			'{"uuid_poisoned": "UUID", "topic_poisoned": "orders", "consumer_poisoned": "booking/book", "inbox_key_poisoned": "UUID"}')`)
		groups, err := newAdmin(t, h).ErrorGroups(t.Context(), admin.Filter{States: []admin.State{admin.Dead}})
		require.NoError(t, err)
		return groups[0].ID
	}
	tests := everyTest(t)
	ran, seen := 0, map[string]bool{}
	pages := documents(t)
	for page, content := range pages {
		content, _, _ = strings.Cut(content, "\n## outboxctl")
		for _, found := range regexp.MustCompile("(?m)(?:^|`|: )(?:OUTBOX_\\w+=\\S+ )*outboxctl ([a-z][^`\n]*)").
			FindAllStringSubmatch(content, -1) {
			line, _, _ := strings.Cut(found[1], " #")
			line, _, _ = strings.Cut(line+" ", " | ") // a pipe, or the end of a cell
			line = strings.TrimSpace(strings.Replace(line, "--reason ...", "--reason 'a try'", 1))
			args := words(line)
			if by := notHere[args[0]]; by != "" {
				assert.True(t, tests[by], "%s names the test %s, which does not exist", args[0], by)
				continue
			}
			if args[len(args)-1] == "..." || len(args) == 1 && (args[0] == "import" || args[0] == "export") {
				continue // names a group of commands
			}
			if slices.Contains(args, "--partition-size") { // these tables do not exist here: TestOutboxctlPartitions
				continue
			}
			if seen[line] { // also on another page
				continue
			}
			seen[line] = true
			group := prepare()
			if strings.Contains(line, "--state discarded") {
				h.exec(t, "UPDATE outbox SET published_at = now() WHERE id = 42")
			}
			for i, arg := range args {
				switch {
				case arg == "--watch":
					args[i] = "--exact"
				case args[0] == "find" && i == 1:
					args[i] = "dead"
				case arg == "ID":
					args[i] = "44"
				case i > 0 && args[i-1] == "--group":
					args[i] = group
				case i > 0 && args[i-1] == "--dir":
					args[i] = t.TempDir()
				}
			}
			act :=
				regexp.MustCompile(`^(outbox|keys|inbox|queue|topics) ` +
					`(requeue|redrive|replay|retry-now|discard|skip|pause|resume)`).MatchString(line)
			if act && !strings.Contains(line, "--dry-run") {
				args = append(args, "--yes")
			}
			r := ctl{t: t, url: h.url}.run(args...)
			if ran++; args[0] == "check" {
				require.Less(t, r.code, 3, "%s: %s: %s%s", page, line, r.out, r.err)
				continue
			}
			require.Zero(t, r.code, "%s: %s: %s%s", page, line, r.out, r.err)
			assert.NotContains(t, r.out, "Nothing to do", "%s: %s", page, line)
			if act { // nothing to import
				assert.NotRegexp(t, `\b0 messages\b`, r.out, "%s: %s", page, line)
			}
		}
	}
	require.Greater(t, ran, 20)
}

const rootModule = "github.com/millrace-go/watermill-outbox"

// imported maps package names in the documents to import paths. A page that uses another name for a package shows the
// import in the first snippet that uses it.
var imported = map[string]string{
	"cmp": "cmp", "context": "context", "sql": "database/sql", "json": "encoding/json", "errors": "errors",
	"http": "net/http", "net": "net", "os": "os",
	"filepath": "path/filepath", "strings": "strings", "time": "time",
	"watermill": "github.com/ThreeDotsLabs/watermill", "message": "github.com/ThreeDotsLabs/watermill/message",
	"cqrs":         "github.com/ThreeDotsLabs/watermill/components/cqrs",
	"requestreply": "github.com/ThreeDotsLabs/watermill/components/requestreply",
	"delay":        "github.com/ThreeDotsLabs/watermill/components/delay",
	"requeuer":     "github.com/ThreeDotsLabs/watermill/components/requeuer",
	"prometheus":   "github.com/prometheus/client_golang/prometheus",
	"outbox":       rootModule, "forwarder": rootModule + "/forwarder",
	"fleet":  rootModule + "/fleet",
	"schema": rootModule + "/schema",
	"queue":  rootModule + "/queue", "idempotency": rootModule + "/idempotency", "admin": rootModule + "/admin",
	"ui": rootModule + "/admin/ui", "move": rootModule + "/move",
	"gorm": "gorm.io/gorm", "pgx": "github.com/jackc/pgx/v5",
	"kafka":   rootModule + "/kafka",
	"observe": rootModule + "/observe", "prom": rootModule + "/observe/prom", "otel": rootModule + "/observe/otel",
	"amqp": rootModule + "/amqp", "nats": rootModule + "/nats", "outboxtest": rootModule + "/outboxtest",
	"jetstream": "github.com/nats-io/nats.go/jetstream", "redis": rootModule + "/redis",
}

var anImport = regexp.MustCompile(`(?m)^import (\w+) "(.*)"$`)

// TestDocumentsCompile compiles all Go in the documents with the declarations of testdata/blocks/given.go. Whole
// programs and tests have separate tests (TestExamples of internal/testing/docs).
func TestDocumentsCompile(t *testing.T) {
	t.Parallel()
	dir, at, n := t.TempDir(), filepath.Join("testdata", "blocks"), 0
	here, err := filepath.Abs(at)
	require.NoError(t, err)
	replace := map[string]string{}
	for page, content := range documents(t) {
		packages := maps.Clone(imported)
		for _, found := range regexp.MustCompile("(?ms)^```go\n(.*?)^```").FindAllStringSubmatchIndex(content, -1) {
			block := content[found[2]:found[3]]
			for _, named := range anImport.FindAllStringSubmatch(block, -1) {
				packages[named[1]] = named[2]
			}
			block = anImport.ReplaceAllString(block, "")
			if strings.HasPrefix(block, "package ") || strings.HasPrefix(block, "func ") {
				continue
			}
			n++
			name := fmt.Sprintf("block%d.go", n)
			line := fmt.Sprintf("%s:%d", page, strings.Count(content[:found[2]], "\n")+1)
			source := compilable(t, n, block, line, packages)
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(source), 0o644))
			replace[filepath.Join(here, name)] = filepath.Join(dir, name)
		}
	}
	require.Greater(t, n, 14)
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o644))
	args := append([]string{"build", "-overlay", filepath.Join(dir, "overlay.json")}, raceFlag()...)
	out, err := exec.CommandContext(t.Context(), "go", append(args, "./"+filepath.ToSlash(at))...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// compilable returns a Go file with a block of a page and the imports that the block needs, out of packages. Variables
// that the block declares count as used, and compiler errors name the line of the page.
func compilable(t *testing.T, n int, block, line string, packages map[string]string) string {
	t.Helper()
	source := fmt.Sprintf("func block%d() {\n//line %s\n%s", n, line, block)
	file, err := parser.ParseFile(token.NewFileSet(), "", "package blocks\n"+source+"}\n", 0)
	require.NoError(t, err, line)
	used, declared := map[string]bool{}, []string{}
	ast.Inspect(file, func(node ast.Node) bool {
		if s, ok := node.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && packages[x.Name] != "" {
				used[x.Name] = true
			}
		}
		return true
	})
	for _, s := range file.Decls[0].(*ast.FuncDecl).Body.List {
		if assign, ok := s.(*ast.AssignStmt); ok && assign.Tok == token.DEFINE {
			for _, left := range assign.Lhs {
				if name := left.(*ast.Ident).Name; name != "_" {
					declared = append(declared, name)
				}
			}
		}
	}
	imports := ""
	for name := range used {
		imports += fmt.Sprintf("import %s %q\n", name, packages[name])
	}
	slices.Sort(declared)
	uses := ""
	for _, name := range slices.Compact(declared) {
		uses += "_ = " + name + "\n"
	}
	return "package blocks\n" + imports + source + uses + "}\n"
}

// raceFlag is -race if this test was built with it: then its imports were as well.
func raceFlag() []string {
	if info, ok := debug.ReadBuildInfo(); ok &&
		slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		return []string{"-race"}
	}
	return nil
}
