package integration_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/cmd/outboxctl/cli"
)

// TestOutboxctlScreens compares the output of the commands with reviewed files. The texts in the database attack the
// terminal.
func TestOutboxctlScreens(t *testing.T) {
	needsPlainOutbox(t) // stats lists partitions
	t.Parallel()
	for name, commands := range map[string]string{
		"inspect": `
			stats
			100: stats
			46: stats
			outbox list --limit 6
			90: outbox list --state dead,failing --limit 3
			40: outbox list --state dead --limit 2
			outbox list --state delayed --topic bookings --before 2d -o json --limit 1
			outbox list --topic none
			outbox show 2
			outbox show 3 --payload
			outbox show 3 --payload -o json
			outbox show 4711
			outbox show
			errors
			errors --topic letters
			errors --consumer shop/book
			errors --state dead --in queue -o json
			errors --in inbux
			errors --in inbox
			keys blocked
			80: keys blocked --limit 1
			keys blocked --dead
			topics list
			inbox list
			inbox show shop/book:m1
			queue list --state failing,dead
			audit
			stats --watch --interval 1ms
		`,
		"act": `
			outbox requeue
			outbox requeue 3
			outbox requeue 3 --dry-run
			outbox requeue 3 --yes --reason 'the topic exists now'
			outbox requeue 3 4711 --yes
			outbox requeue --group 78aac82c9ca5d449 --yes -o json
			outbox requeue --state ready --all --dry-run
			outbox discard --topic orders --yes
			outbox discard --topic orders --yes --reason 'test data' --actor bob
			outbox replay --after 6d --dry-run
			outbox replay --all --limit 1 --yes
			outbox retry-now --key order/4 --dry-run
			outbox retry-now --after yesterday
			keys skip --key order/4 --yes --reason 'refunded by hand'
			keys skip order/3
			keys skip --error 'order 8 not' --dry-run
			topics pause bookings --dry-run
			topics pause bookings
			topics pause bookings --yes --reason 'they asked us to'
			topics resume bookings --yes -o json
			topics resume bookings --yes
			topics pause bukings --dry-run
			topics pause
			inbox requeue --all --yes
			inbox discard shop/book:m2 --state failing --yes --reason 'never came'
			queue requeue mail:q2 --yes
			queue retry-now --topic letters --yes
			clean --outbox 365d --yes
			clean
			clean --inbox 2d --dry-run
			clean --inbox 2d --dry-run -o json
			audit
			audit --limit 1 -o json
			queue requeue mail:q4 mail:none --dry-run
			queue requeue mail:q4 --topic none --yes
			queue requeue mail:q4 mail:none --yes
		`,
	} {
		t.Run(name, func(t *testing.T) {
			h := onPgx(t)
			fillOutboxctl(t, h)
			golden(t, name+".txt", ctl{t: t, url: h.url}.script(commands))
		})
	}
}

// TestOutboxctlMigrates creates the tables in an empty database.
func TestOutboxctlMigrates(t *testing.T) {
	t.Parallel()
	c := ctl{t: t, url: newDatabase(t)}
	golden(t, "migrate.txt", c.script(`
		stats
		migrate status
		migrate up -o json
		migrate up
		migrate status
		--tables schema=shop,outbox=events migrate up
		--tables schema=shop,outbox=events outbox list
		--tables schema=shop,outbux=events outbox list
		--tables outbox=drop;table migrate up
		migrate print --format flyway
	`))
	dir := filepath.Join(t.TempDir(), "sql", "migrations") // created if it does not exist
	r := c.run("migrate", "print", "--format", "goose", "--dir", dir, "--start-at", "20")
	require.Zero(t, r.code, r.err)
	files, err := filepath.Glob(filepath.Join(dir, "*.sql"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	assert.Contains(t, files[0], "20_")
	again := c.run("migrate", "print", "--format", "goose", "--dir", dir, "--start-at", "20")
	assert.Equal(t, 1, again.code)
	assert.Contains(t, again.err, "file exists: print only new versions, with --from")
	late := c.run("migrate", "print", "--format", "goose", "--dir", dir, "--from", "26") // from the number of a file
	assert.Contains(t, late.out, "nothing to write: version 26 does not exist", late.err)

	// The output of print creates valid tables, and roles can be granted on them.
	other := newPgxHandle(t, newDatabase(t))
	_, err = other.pool.Exec(t.Context(), c.run("migrate", "print").out)
	require.NoError(t, err)
	c.url = other.url
	assert.Contains(t, c.run("migrate", "up").out, "nothing to do")
	assert.Contains(t, c.run("migrate", "roles", "--prefix", "x_").out, `CREATE ROLE "x_reader"`)
}

// TestOutboxctlAsks: a user at a terminal confirms before anything changes.
func TestOutboxctlAsks(t *testing.T) {
	h := onPgx(t)
	fillOutboxctl(t, h)
	c := ctl{t: t, url: h.url, width: 100}
	for _, no := range []string{"\n", "n\n", "yep\n", "yes please\n"} {
		r := c.runWith(t.Context(), no, "outbox", "requeue", "3")
		assert.Equal(t, 2, r.code)
		assert.Contains(t, r.err, "Requeue 1 message of the outbox (id 3)? [y/N]")
		assert.Equal(t, "dead", value[string](t, h, "SELECT CASE WHEN dead_at IS NULL THEN 'alive' ELSE 'dead' END "+
			"FROM outbox WHERE id = 3"))
	}
	r := c.runWith(t.Context(), "y\n", "outbox", "requeue", "3")
	assert.Zero(t, r.code, r.err)
	assert.Contains(t, r.out, "Requeued 1 message; entry 1 of the audit log.")
	assert.Equal(t, "ann", value[string](t, h, "SELECT actor FROM outbox_audit"))

	assert.Contains(t, c.run("topics", "pause", "bukings", "--dry-run").err, "check the name")
	h.exec(t, "ALTER TABLE inbox RENAME TO elsewhere")
	for act, done := range map[string]string{"pause": "Paused", "resume": "Resumed"} {
		r := c.run("topics", act, "bookings", "--yes")
		assert.Zero(t, r.code, r.err)
		assert.Contains(t, r.out, done+" topic bookings.")
		assert.Contains(t, r.err, "could not read the state of topic bookings")
	}
}

// TestOutboxctlPausesFirst: pausing a topic works even when the database is overloaded and counting is slow.
func TestOutboxctlPausesFirst(t *testing.T) {
	h := onPgx(t)
	conn := begin(t, h, "BEGIN", "LOCK TABLE inbox_queue")
	log := &watched{}
	end := ctl{t: t, url: h.url, env: []string{"USER=ann"}}.start(log, "--timeout", "0", "topics", "pause",
		"bookings", "--yes")
	h.reaches(t, 1, "the topic is paused", "SELECT count(*)::int FROM outbox_topics WHERE topic = 'bookings'")
	_, err := conn.Exec(t.Context(), "ROLLBACK")
	require.NoError(t, err)
	eventually(t, func() bool { return strings.Contains(log.String(), "check the name") }, "it counts afterwards: %s", log)
	r := end()
	assert.Zero(t, r.code, r.err)
	assert.Equal(t, "Paused topic bookings.\n", r.out)
}

// TestOutboxctlIsInterrupted ends commands while they work, wait for confirmation or watch.
func TestOutboxctlIsInterrupted(t *testing.T) {
	h := onPgx(t)
	fillOutbox(t, h, 6*1200) // two and a half batches of each state
	interrupted := func(at string, in *blocked, args ...string) (int, string, string) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		width := func() int { return 100 }
		see := func(all string) {
			if strings.Contains(all, at) {
				cancel()
			}
		}
		out, err := &watched{tell: see}, &watched{tell: see}
		code := cli.Run(ctx, args, cli.World{In: in, Out: out, Err: err, Ask: true, Width: width, ErrWidth: width,
			Environ: []string{"OUTBOX_DSN=" + h.url, "USER=ann"}})
		return code, out.String(), err.String()
	}
	in := &blocked{end: make(chan struct{})}
	defer close(in.end)

	code, out, said := interrupted("500/1200", in, "outbox", "requeue", "--all", "--yes")
	assert.Equal(t, 130, code)
	assert.Contains(t, out, "Requeued 500 messages; entry 1 of the audit log.")
	assert.Contains(t, said, "interrupted")
	assert.Equal(t, 500, h.count(t, "SELECT touched::int FROM outbox_audit"))

	code, out, said = interrupted("[y/N]", in, "outbox", "requeue", "--all")
	assert.Equal(t, 130, code)
	assert.Empty(t, out)
	assert.Contains(t, said, "Requeue 700 messages")
	assert.Equal(t, 700, h.states(t, "id % 6 = 3")["dead"])

	code, out, _ = interrupted("topic-6", in, "stats", "--watch")
	assert.Zero(t, code)
	assert.Contains(t, out, "\x1b[H")
	code, out, _ = interrupted("topic-6", in, "stats", "--watch", "-o", "json")
	assert.Zero(t, code)
	assert.True(t, json.Valid([]byte(out)), out)
	assert.Equal(t, 1, strings.Count(out, "\n"))
}

// TestOutboxctlInterruptedImport: the output of an interrupted import matches the audit log and the tables.
func TestOutboxctlInterruptedImport(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `CREATE TABLE mine (id bigint PRIMARY KEY, sent_at timestamptz, body text)`)
	h.exec(t, `INSERT INTO mine (id, body) SELECT i, 'x' FROM generate_series(1, 1200) i`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	width := func() int { return 100 }
	var out strings.Builder
	said := &watched{tell: func(all string) {
		if strings.Contains(all, "500/1200") {
			cancel()
		}
	}}
	code := cli.Run(ctx, []string{"import", "table", "mine", "--pending", "sent_at IS NULL", "--done", "sent_at = now()",
		"--topic", "'orders'", "--payload", "body", "--yes"}, cli.World{
		Out: &out, Err: said, Width: width, ErrWidth: width, Environ: []string{"OUTBOX_DSN=" + h.url},
	})
	assert.Equal(t, 130, code)
	moved := h.count(t, "SELECT count(*)::int FROM outbox")
	assert.Contains(t, []int{500, 1000}, moved)
	assert.Equal(t, moved, h.count(t, "SELECT touched::int FROM outbox_audit"))
	assert.Contains(t, strings.ReplaceAll(out.String(), ",", ""), fmt.Sprintf("Moved %d messages", moved))
	assert.Contains(t, out.String(), "entry 1 of the audit log")
	log, _, err := newAdmin(t, h).Audit(t.Context(), admin.Page{})
	require.NoError(t, err)
	assert.Equal(t, "interrupted: context canceled", log[0].Outcome)
	assert.NotEmpty(t, log[0].Actor, "the system's user, without USER")
}

// blocked is a terminal at which no one types.
type blocked struct{ end chan struct{} }

func (b *blocked) Read([]byte) (int, error) {
	<-b.end
	return 0, context.Canceled
}

// TestOutboxctlAttacks passes arguments that attack the terminal, the statements and the log. None has an effect, and
// no unprintable character reaches the screen.
func TestOutboxctlAttacks(t *testing.T) {
	h := onPgx(t)
	fillOutboxctl(t, h)
	before := h.count(t, "SELECT count(*)::int FROM outbox")
	c := ctl{t: t, url: h.url, width: 100}
	t.Run("attacks", func(t *testing.T) {
		for n, attack := range []string{
			"\x1b[2J\x1b]0;owned\x07\u202egnp.exe\u009b2J\x7f\x08", "a\r\n\tPaused topic bookings.", "\x1b[31m\xff\xfe",
			`1' OR 1=1; DROP TABLE outbox; --"%`,
			"$(id) `id` {{.}} %s%n%d ../../etc/passwd", "-9223372036854775808", strings.Repeat("x", 2_000),
		} {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for i, args := range [][]string{
					{attack}, {"outbox", attack}, {"--" + attack}, {"stats", "--output", attack}, {"--tables", attack, "stats"},
					{"--tables", "outbox=" + attack, "stats"},
					{"--dsn", attack, "stats"}, {"stats", "--interval", attack},
					{"outbox", "list", "--topic", attack}, {"outbox", "list", "--key", attack},
					{"outbox", "list", "--error", attack},
					{"outbox", "list", "--group", attack}, {"outbox", "list", "--state", attack},
					{"outbox", "list", "--after", attack}, {"outbox", "list", "--page", attack},
					{"outbox", "show", attack}, {"outbox", "show", "--", attack}, {"inbox", "show", attack},
					{"queue", "show", attack}, {"errors", "--in", attack},
					{"outbox", "requeue", "--yes", "--", attack},
					{"outbox", "discard", "--yes", "--topic", attack, "--reason", attack},
					{"outbox", "replay", "--key", attack, "--yes"},
					{"outbox", "requeue", "--yes", "--group", attack, "--actor", attack},
					{"keys", "skip", "--key", attack, "--yes", "--reason", "x"},
					{"topics", "pause", "--yes", "--reason", attack, "--", attack}, {"topics", "resume", "--yes", "--", attack},
					{"inbox", "discard", "--consumer", attack, "--reason", "x", "--yes"},
					{"queue", "requeue", "--source", attack, "--yes"}, {"migrate", "print", "--format", attack},
					{"migrate", "roles", "--prefix", attack}, {"clean", "--outbox", attack},
					{"completion", attack}, {"help", attack}, {"__complete", "outbox", "list", "--state", attack},
					{"audit", "--page", attack}, {"check", attack}, {"check", "--" + attack}, {"doctor", attack},
					{"forward", "--nats", attack, "--drain", "--log", attack},
					{"forward", "--kafka", attack, "--drain", "--close-timeout", attack},
					{"forward", "--nats", "x", "--broker-ca", attack},
				} {
					if !long && (i+n)%3 > 0 {
						continue // each command gets two or three of the attacks
					}
					r := c.run(args...)
					onlyPrints(t, r.out, args)
					onlyPrints(t, r.err, args)
				}
				onlyPrints(t, c.run("audit").out, attack) // shows reasons and actors
				onlyPrints(t, c.run("stats").out, attack) // shows paused topics
				onlyPrints(t, c.run("stats", "-o", "json").out, attack)
			})
		}
	})
	assert.Equal(t, before, h.count(t, "SELECT count(*)::int FROM outbox"))
	assert.Zero(t, h.count(t, "SELECT count(*)::int FROM outbox_audit WHERE touched > 0 "+
		"AND action NOT IN ('pause', 'resume')"))
	for _, of := range []string{
		"outbox list", "outbox list -o json", "errors", "errors -o json", "keys blocked", "topics list", "inbox list",
		"queue list", "outbox show 2 --payload", "outbox show 2 -o json",
	} {
		onlyPrints(t, c.run(words(of)...).out, of)
	}
}

func onlyPrints(t testing.TB, screen string, args any) {
	t.Helper()
	bad := strings.IndexFunc(screen, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) })
	if bad >= 0 {
		t.Fatalf("%.200q prints %q", args, screen[bad:min(bad+40, len(screen))])
	}
}

// TestOutboxctlColours: colours appear only on terminals that support them.
func TestOutboxctlColours(t *testing.T) {
	h := onPgx(t)
	fillOutboxctl(t, h)
	dead := []string{"outbox", "list", "--state", "dead", "--limit", "1"}
	colour := ctl{t: t, url: h.url, env: []string{"TERM=xterm-256color", "CLICOLOR_FORCE=1"}}.run(dead...)
	assert.Contains(t, colour.out, "\x1b[31mdead")
	for name, env := range map[string][]string{
		"a pipe": {"TERM=xterm-256color"}, "no colour": {"TERM=xterm-256color", "CLICOLOR_FORCE=1", "NO_COLOR=1"},
	} {
		r := ctl{t: t, url: h.url, env: env}.run(dead...)
		assert.NotContains(t, r.out, "\x1b[3", name)
	}
}

// TestOutboxctlRoles: readers may read, operators may act.
func TestOutboxctlRoles(t *testing.T) {
	extended(t)
	t.Parallel()
	owner, as := newRoles(t)
	fillOutboxctl(t, owner)
	reader, operator := ctl{t: t, url: as("reader").url}, ctl{t: t, url: as("admin").url}
	for _, command := range []string{
		"stats", "outbox list", "outbox show 3", "errors", "keys blocked", "topics list", "inbox list", "queue list",
		"audit", "doctor", "migrate status",
	} {
		r := reader.run(words(command)...)
		assert.Zero(t, r.code, "%s: %s", command, r.err)
	}
	shown := reader.run("outbox", "show", "3", "--payload").out
	assert.NotContains(t, shown, `{"n": 3}`)
	assert.Contains(t, shown, "payload      null, or the role may not read it")
	for _, act := range []string{
		"outbox requeue 3", "keys skip --all --reason x", "topics pause orders", "inbox requeue --all",
		"queue requeue --all",
	} {
		args := append(words(act), "--yes")
		r := reader.run(args...)
		assert.Equal(t, 1, r.code, act)
		assert.Contains(t, r.err, "permission denied", act)
		r = operator.run(args...)
		assert.Zero(t, r.code, "%s: %s", act, r.err)
	}
}

// TestOutboxctlCompletes requests completions as a shell does. It needs no database.
func TestOutboxctlCompletes(t *testing.T) {
	t.Parallel()
	c := ctl{t: t, url: "postgres://u:canary@127.0.0.1:1/x"}
	for line, want := range map[string][]string{
		"outbox re":                  {"replay", "requeue", "retry-now"},
		"outbox requeue --state ":    {"dead", "failing", "discarded"},
		"inbox list --state ":        {"ready", "failing", "dead", "done", "discarded"},
		"stats --output ":            {"table", "json"},
		"migrate print --format ":    {"plain", "goose", "golang-migrate"},
		"forward --kafka-mechanism ": {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"},
	} {
		r := c.run(append([]string{"__complete"}, strings.Split(line, " ")...)...)
		var got []string
		for said := range strings.Lines(r.out) {
			if !strings.HasPrefix(said, ":") {
				name, _, _ := strings.Cut(strings.TrimSpace(said), "\t")
				got = append(got, name)
			}
		}
		assert.ElementsMatch(t, want, got, line)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		r := c.run("completion", shell)
		assert.Zero(t, r.code)
		assert.NotContains(t, r.out+r.err, "canary")
	}
}

// TestOutboxctlShowsTheSameTimes: an act on a message of the inbox resets its column, and a dead message is not due.
func TestOutboxctlShowsTheSameTimes(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `INSERT INTO inbox (consumer, message_id, received_at, dead_at, attempts, last_error)
		VALUES ('shop/book', 'm1', now() - interval '2 hours', now() - interval '1 hour', 3, 'no')`)
	h.exec(t, `INSERT INTO outbox (uuid, topic, due_at, dead_at, attempts, last_error)
		VALUES ('u1', 'orders', now() + interval '1 hour', now(), 3, 'no')`)
	c := ctl{t: t, url: h.url}
	require.Zero(t, c.run("inbox", "requeue", "shop/book:m1", "--yes").code)
	written := regexp.MustCompile(`(?m)^written .*$`)
	found, shown := c.run("find", "m1").out, c.run("inbox", "show", "shop/book:m1").out
	require.NotEmpty(t, written.FindString(shown), shown)
	assert.Equal(t, written.FindString(shown), written.FindString(found))
	assert.NotRegexp(t, `(?m)^due `, c.run("find", "u1").out)
}
