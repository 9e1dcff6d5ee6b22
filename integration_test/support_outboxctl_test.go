package integration_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/cmd/outboxctl/cli"
)

// ctl runs outboxctl on a database, with its output in a pipe unless width is set.
type ctl struct {
	t     testing.TB
	url   string
	width int      // of the terminal; 0 = a pipe
	env   []string // besides OUTBOX_DSN and USER
}

type ctlResult struct {
	code     int
	out, err string
}

func (c ctl) run(args ...string) ctlResult {
	return c.runWith(c.t.Context(), "", args...)
}

// runWith runs a command; a non-empty answer is typed at the terminal.
func (c ctl) runWith(ctx context.Context, answer string, args ...string) ctlResult {
	var out, err bytes.Buffer
	width := func() int { return c.width }
	code := cli.Run(ctx, args, cli.World{
		In: strings.NewReader(answer), Out: &out, Err: &err, Ask: answer != "", Width: width, ErrWidth: width,
		Environ: append([]string{"OUTBOX_DSN=" + c.url, "USER=ann"}, c.env...),
	})
	return ctlResult{code, out.String(), err.String()}
}

// script runs commands like a shell and returns the screen. A line may begin with a width, as in "60: stats".
func (c ctl) script(lines string) string {
	var screen strings.Builder
	for line := range strings.Lines(lines) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		fmt.Fprintf(&screen, "$ outboxctl %s\n", line)
		on := c
		if n, _ := fmt.Sscanf(line, "%d:", &on.width); n == 1 {
			_, line, _ = strings.Cut(line, ": ")
		}
		r := on.run(words(line)...)
		screen.WriteString(r.out)
		for said := range strings.Lines(r.err) {
			screen.WriteString("! " + said)
		}
		if r.code != 0 {
			fmt.Fprintf(&screen, "! exit code %d\n", r.code)
		}
		screen.WriteString("\n")
	}
	return screen.String()
}

var word = regexp.MustCompile(`'[^']*'|\S+`)

func words(line string) []string {
	all := word.FindAllString(line, -1)
	for i, w := range all {
		all[i] = strings.Trim(w, "'")
	}
	return all
}

var (
	someTime = regexp.MustCompile(`\d{4}-\d\d-\d\d([ T])\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)`)
	cursor   = regexp.MustCompile(`("next": |--page )\S+`)
)

// golden compares a text with a reviewed file. OUTBOX_WRITE_GOLDEN=1 writes the file: review it then.
func golden(t testing.TB, name, have string) {
	t.Helper()
	have = someTime.ReplaceAllString(have, "2006-01-02${1}15:04:05Z")
	have = cursor.ReplaceAllString(have, "${1}...")
	file := filepath.Join("testdata", "outboxctl", name)
	if os.Getenv("OUTBOX_WRITE_GOLDEN") != "" {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(have), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), have, "if intended: OUTBOX_WRITE_GOLDEN=1, then read %s", file)
}

// watched is a buffer that signals writes.
type watched struct {
	mu     sync.Mutex
	buffer bytes.Buffer
	tell   func(all string)
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, err := w.buffer.Write(p)
	if w.tell != nil {
		w.tell(w.buffer.String())
	}
	return n, err
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buffer.String()
}

// fillOutboxctl writes messages of all states whose ages do not change while a test runs. Their texts attack a
// terminal.
func fillOutboxctl(t testing.TB, h handle) {
	t.Helper()
	h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, metadata, created_at, due_at, attempts, last_error, published_at, dead_at)
		SELECT 'u' || i, CASE i % 3 WHEN 0 THEN 'orders' WHEN 1 THEN 'bookings' ELSE E'evil\u202e\x1b]0;owned\x07' END,
		       CASE WHEN i % 4 > 0 THEN 'order/' || i % 5 ELSE '' END, convert_to('{"n": ' || i || '}', 'UTF8'), '{"event_type": "order.booked"}',
		       now() - (i + 1) * interval '1 day' - interval '90 minutes',
		       CASE i % 6 WHEN 1 THEN now() + (i + 1) * interval '1 day' + interval '90 minutes' WHEN 2 THEN now() + interval '3 days 90 minutes' WHEN 3 THEN now() END,
		       CASE i % 6 WHEN 2 THEN 1 + i % 5 WHEN 3 THEN 10 ELSE 0 END,
		       CASE WHEN i % 6 IN (2, 3) THEN CASE WHEN i % 4 < 2 THEN 'order ' || i || ' not found' ELSE E'broker "b' || i || E'" away\r\n\x1b[2J\x1b[31mERROR: all is lost' END END,
		       CASE i % 6 WHEN 4 THEN now() - interval '1 day' WHEN 5 THEN now() - interval '1 day' END,
		       CASE i % 6 WHEN 3 THEN now() - interval '1 day' WHEN 5 THEN now() - interval '1 day' END
		  FROM generate_series(1, 24) i`)
	h.exec(t, `INSERT INTO inbox (consumer, message_id, received_at, processed_at, dead_at, attempts, last_error)
		SELECT 'shop/book', 'm' || i, now() - (i + 1) * interval '1 day' - interval '90 minutes', CASE i % 3 WHEN 0 THEN now() - interval '1 day' END,
		       CASE i % 3 WHEN 1 THEN now() - interval '1 day' END, i % 3, CASE WHEN i % 3 > 0 THEN E'no such \x1b[31mroom ' || i END FROM generate_series(1, 6) i`)
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, payload, state, first_seen_at, last_seen_at, due_at, attempts, last_error)
		SELECT 'mail', 'q' || i, 'letters', '', CASE WHEN i % 2 = 0 THEN 'dead' ELSE 'processing' END, now() - (i + 1) * interval '1 day' - interval '90 minutes', now(),
		       CASE WHEN i % 2 = 1 THEN now() + interval '3 days 90 minutes' END, 1 + i, 'no address' FROM generate_series(1, 4) i`)
}
