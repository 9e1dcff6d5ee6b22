package demo

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// screen prints a line for each event, and a status, which is overwritten on a terminal and a line of its own
// elsewhere.
type screen struct {
	out      io.Writer
	terminal bool
	begun    time.Time

	mu     sync.Mutex
	status bool // the cursor stands on a status
}

func newScreen(out *os.File) *screen {
	info, err := out.Stat()
	return &screen{
		out:      out,
		terminal: err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb",
		begun:    time.Now(),
	}
}

func (s *screen) say(format string, args ...any) {
	s.line(false, "** "+format, args...)
}

func (s *screen) show(format string, args ...any) {
	s.line(s.terminal, format, args...)
}

func (s *screen) line(status bool, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status {
		fmt.Fprint(s.out, "\r\x1b[K")
	}
	s.status = status
	fmt.Fprintf(s.out, "%3.0f s  ", time.Since(s.begun).Seconds())
	fmt.Fprintf(s.out, format, args...)
	if !status {
		fmt.Fprintln(s.out)
	}
}

// clear removes a status, so that something else can be printed.
func (s *screen) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status {
		fmt.Fprint(s.out, "\r\x1b[K")
		s.status = false
	}
}

// number writes n with a comma after every three digits.
func number(n int) string {
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
