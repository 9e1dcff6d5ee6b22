package services

import (
	"os"
	"strings"
	"sync"
	"time"
)

const (
	progressPause = 5 * time.Second
	stallTimeout  = 2 * time.Minute
)

// watch logs every few seconds what it is waiting for, with the last line of that log, until stop is called.
func (o Options) watch(what, log string) (stop func()) {
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		begun := time.Now()
		ticker := time.NewTicker(progressPause)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				o.say("still %s (%s)%s", what, time.Since(begun).Round(time.Second), lastLine(log))
			}
		}
	})
	return sync.OnceFunc(func() {
		close(done)
		watching.Wait()
	})
}

const maxLastLine = 120 // bytes

// lastLine returns ": " and the last line of a log, or nothing.
func lastLine(path string) string {
	content, err := os.ReadFile(path)
	text := strings.TrimSpace(string(content))
	if err != nil || text == "" {
		return ""
	}
	line := text[strings.LastIndexByte(text, '\n')+1:]
	if len(line) > maxLastLine {
		line = line[:maxLastLine] + "..."
	}
	return ": " + line
}

// vigil distinguishes a slow start from a hung one: a busy machine may take minutes, but then the log grows.
type vigil struct {
	size  int64
	since time.Time
}

// hangs reports whether the log has not grown for stallTimeout.
func (v *vigil) hangs(now time.Time, size int64) bool {
	if v.since.IsZero() || size != v.size {
		v.size, v.since = size, now
	}
	return now.Sub(v.since) >= stallTimeout
}

func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}
