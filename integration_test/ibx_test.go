package integration_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/queue"
)

// TestIBX tests the requirements of the queue's specification one by one, by their numbers, with pgx and database/sql.
// Each section has a file, ibx_*_test.go; make ibx generates ibx.md from them.

// verdict is the outcome of a requirement.
type verdict string

const (
	held          verdict = "met"
	differs       verdict = "met differently"
	notApplicable verdict = "not applicable"
	missing       verdict = "missing" // not built yet
)

// requirement is a requirement of the specification, with the test that shows it.
type requirement struct {
	number  int
	text    string
	verdict verdict
	why     string                    // unless it is met as written
	test    func(t *testing.T, x ibx) // either this
	shownBy string                    // or another test of this package
}

type ibxSection struct {
	title        string
	requirements []requirement
}

// ibxSections is in the order of the specification.
var ibxSections = []ibxSection{
	{"6.1 Deduplication and state tracking", ibxDeduplication},
	{"6.2 Enqueuing", ibxEnqueuing},
	{"6.3 Claiming", ibxClaiming},
	{"6.4 Acknowledgment", ibxAcks},
	{"6.5 Abandonment", ibxAbandons},
	{"6.6 Failure", ibxFailures},
	{"6.7 Expiry of leases", ibxReaping},
	{"6.8 Handlers", ibxHandlers},
	{"6.9 Retry and backoff", ibxRetries},
	{"6.10 Many databases", ibxDatabases},
	{"6.11 Discovery", ibxDiscovery},
	{"6.12 Clean-up", ibxCleanup},
	{"6.13 Concurrency", ibxConcurrency},
	{"6.14 Observability", ibxObservability},
	{"6.15 Schema", ibxSchema},
	{"7 Configuration and limits", ibxLimits},
}

// ibx is the fixture of a requirement: a store in a database shared by all of them, and its own topic and source.
type ibx struct {
	handle
	store *queue.Store
	logs  *lineLogger
	name  string
	owner queue.Owner
}

func TestIBX(t *testing.T) { testIBX(t, onPgx(t)) }

func TestIBXOverDatabaseSQL(t *testing.T) {
	extended(t)
	parallel(t)
	testIBX(t, newSQLHandle(t, "pgx", newMigratedDatabase(t)))
}

func testIBX(t *testing.T, h handle) {
	for _, section := range ibxSections {
		for _, r := range section.requirements {
			if r.test == nil {
				continue
			}
			name := fmt.Sprintf("IBX-%03d", r.number)
			t.Run(name+"_"+strings.ReplaceAll(r.text, " ", "_"), func(t *testing.T) {
				x := ibx{handle: h, logs: &lineLogger{}, name: name, owner: queue.NewOwner()}
				x.store = x.with(t, queue.StoreConfig{})
				r.test(t, x)
			})
		}
	}
}

// with returns another store on the same table.
func (x ibx) with(t testing.TB, cfg queue.StoreConfig) *queue.Store {
	t.Helper()
	store, err := queue.NewStore(x.db, cfg, x.logs)
	require.NoError(t, err)
	return store
}

// patient returns another store on the same table whose messages wait for an hour after a failure.
func (x ibx) patient(t testing.TB) *queue.Store {
	t.Helper()
	return x.with(t, queue.StoreConfig{Backoff: outbox.Backoff{Func: func(int) time.Duration { return time.Hour }}})
}

func (x ibx) id(id string) queue.ID { return queue.ID{Source: x.name, MessageID: id} }

func (x ibx) item(id string) queue.Item {
	return queue.Item{ID: x.id(id), Topic: x.name, Payload: []byte("payload of " + id)}
}

// put stores messages.
func (x ibx) put(t testing.TB, items ...queue.Item) []queue.EnqueueResult {
	t.Helper()
	stored, err := x.store.Enqueue(t.Context(), items...)
	require.NoError(t, err)
	return stored
}

// claim claims messages of the requirement's own topic.
func (x ibx) claim(t testing.TB, owner queue.Owner, limit int) []queue.Message {
	t.Helper()
	msgs, err := x.store.Claim(t.Context(), queue.Claim{
		Owner: owner, LeaseTTL: time.Minute, Limit: limit, Topics: []string{x.name},
	})
	require.NoError(t, err)
	return msgs
}

// has stores a message and claims it.
func (x ibx) has(t testing.TB, id string) queue.ID {
	t.Helper()
	x.put(t, x.item(id))
	require.Len(t, x.claim(t, x.owner, 1), 1)
	return x.id(id)
}

func (x ibx) get(t testing.TB, id string) queue.Message {
	t.Helper()
	return got(t, x.store, x.id(id))
}

// column reads a column of a message's row.
func (x ibx) column(t testing.TB, id, expression string) string {
	t.Helper()
	return value[string](t, x.handle, "select coalesce(("+expression+
		")::text, '') from inbox_queue where source = $1 and message_id = $2", x.name, id)
}

// lapse expires the lease of a message.
func (x ibx) lapse(t testing.TB, id string) {
	t.Helper()
	x.change(t, id, func(q *ibxRow) { q.LockedUntil = x.now(t).Add(-time.Second) })
}

// due makes a waiting message due.
func (x ibx) due(t testing.TB, id string) {
	t.Helper()
	x.change(t, id, func(q *ibxRow) { q.DueAt = x.now(t) })
}

// settles asserts how many messages a call changed.
func settles(t testing.TB, want int) func(n int, err error) {
	return func(n int, err error) {
		t.Helper()
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
}

// invalid asserts that a call was refused, and why.
func invalid(t testing.TB, err error, why string) {
	t.Helper()
	require.ErrorIs(t, err, queue.ErrInvalid)
	require.ErrorContains(t, err, why)
}

// lineLogger keeps lines as text: level, message, error and fields.
type lineLogger struct {
	watermill.NopLogger
	mu    sync.Mutex
	lines []string
}

func (l *lineLogger) line(level, msg string, err error, fields watermill.LogFields) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprint(level, " ", msg, " ", err, " ", fields))
}

func (l *lineLogger) Error(msg string, err error, fields watermill.LogFields) {
	l.line("ERROR", msg, err, fields)
}
func (l *lineLogger) Info(msg string, fields watermill.LogFields)  { l.line("INFO", msg, nil, fields) }
func (l *lineLogger) Debug(msg string, fields watermill.LogFields) { l.line("DEBUG", msg, nil, fields) }
func (l *lineLogger) Trace(msg string, fields watermill.LogFields) { l.line("TRACE", msg, nil, fields) }

func (l *lineLogger) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return &lineLoggerWith{l, fields}
}

type lineLoggerWith struct {
	*lineLogger
	fields watermill.LogFields
}

func (l *lineLoggerWith) Error(msg string, err error, f watermill.LogFields) {
	l.line("ERROR", msg, err, l.fields.Add(f))
}
func (l *lineLoggerWith) Info(msg string, f watermill.LogFields) {
	l.line("INFO", msg, nil, l.fields.Add(f))
}
func (l *lineLoggerWith) Debug(msg string, f watermill.LogFields) {
	l.line("DEBUG", msg, nil, l.fields.Add(f))
}

// has reports whether a line begins with a level and contains some parts.
func (l *lineLogger) has(level string, parts ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		all := strings.HasPrefix(line, level)
		for _, part := range parts {
			all = all && strings.Contains(line, part)
		}
		if all {
			return true
		}
	}
	return false
}

// TestIBXDocument fails if ibx.md is out of date, if one of the 130 requirements is missing, or if one is listed as
// met without a test.
func TestIBXDocument(t *testing.T) {
	t.Parallel()
	next := 1
	for _, section := range ibxSections {
		for _, r := range section.requirements {
			if r.number > next && next < 118 { // section 7 is not numbered consecutively
				t.Errorf("IBX-%03d is missing", next)
			}
			next = r.number + 1
			assert.False(t, (r.verdict == held || r.verdict == differs) && r.test == nil && r.shownBy == "",
				"nothing shows IBX-%03d", r.number)
			assert.False(t, r.verdict != held && r.why == "", "why is IBX-%03d %s?", r.number, r.verdict)
			for _, name := range strings.Fields(r.shownBy) {
				assert.True(t, testNamed(t, name), "IBX-%03d is shown by %s, which does not exist", r.number, name)
			}
		}
	}
	assert.Equal(t, 131, next)
	const file = "ibx.md"
	want := ibxDocument()
	if os.Getenv("OUTBOX_WRITE_IBX") != "" {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
	}
	is, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, want, string(is), "run make ibx")
}

var testSources = sync.OnceValues(func() (string, error) {
	var files []string
	for _, folder := range []string{".", "../fleet", "../queue", "../schema"} {
		some, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
		if err != nil {
			return "", err
		}
		files = append(files, some...)
	}
	var all strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		all.Write(text)
	}
	return all.String(), nil
})

func testNamed(t testing.TB, name string) bool {
	t.Helper()
	all, err := testSources()
	require.NoError(t, err)
	return strings.Contains(all, "\nfunc "+name+"(")
}
