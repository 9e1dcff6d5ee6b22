//go:build unix

package integration_test

import (
	"os"
	"strings"
	"testing"

	"github.com/creack/pty"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/cmd/outboxctl/cli"
)

// atTerminal runs a command at a terminal, types each answer when its prompt is on the screen, and returns the screen's
// text.
func (c ctl) atTerminal(answers map[string]string, args ...string) (code int, screen string) {
	c.t.Helper()
	keyboard, terminal, err := pty.Open()
	require.NoError(c.t, err)
	require.NoError(c.t, pty.Setsize(keyboard, &pty.Winsize{Rows: 24, Cols: 100}))
	read := make(chan string, 1)
	go func() {
		var all strings.Builder
		buf := make([]byte, 4096)
		for {
			n, err := keyboard.Read(buf)
			all.Write(buf[:n])
			for words, answer := range answers {
				if strings.Contains(all.String(), words) {
					delete(answers, words)
					_, _ = keyboard.WriteString(answer)
				}
			}
			if err != nil { // the terminal was closed, and everything was read
				read <- all.String()
				return
			}
		}
	}()
	code = cli.Run(c.t.Context(), args,
		cli.WorldOf(terminal, terminal, terminal,
			append(os.Environ(), "OUTBOX_DSN="+c.url, "USER=ann", "TERM=xterm-256color")))
	require.NoError(c.t, terminal.Close())
	screen = <-read
	require.NoError(c.t, keyboard.Close())
	return code, screen
}

// TestOutboxctlAtATerminal prompts, shows progress while it works, and leaves a clean line.
func TestOutboxctlAtATerminal(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `INSERT INTO outbox (uuid, topic, payload, attempts, last_error, dead_at) SELECT i, 'orders', '', 10, `+
		`'away', now() FROM generate_series(1, 9000) i`)
	c := ctl{t: t, url: h.url}
	const question = "Requeue 9,000 messages of the outbox (topic orders)? [y/N] "
	requeue := []string{"outbox", "requeue", "--topic", "orders"}
	code, screen := c.atTerminal(map[string]string{question: "n\n"}, requeue...)
	assert.Equal(t, 2, code, screen)
	assert.Contains(t, screen, "not confirmed")
	assert.Equal(t, 9000, h.states(t, "true")["dead"])

	code, screen = c.atTerminal(map[string]string{question: "y\n"}, requeue...)
	assert.Zero(t, code, screen)
	assert.Regexp(t, `\d+% .*\(\d+/9000, \d+ messages/s\) \[\d+s:\d+s\]`, screen, "the bar, with rate and remaining time")
	assert.Regexp(t, `\r\x1b\[[0-9]?K|\r +\r`, screen, "the bar is erased")
	assert.Regexp(t, `Requeued 9,000 messages; entry \d+ of the audit log\.\r\n$`, screen)
	assert.Equal(t, 9000, h.states(t, "true")["ready"])

	code, screen = c.atTerminal(nil, "stats")
	assert.Zero(t, code)
	assert.Contains(t, screen, "\x1b[", "the screen has colours")
}
