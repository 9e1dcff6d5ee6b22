package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/jackc/pgx/v5"
)

// machine describes the machine, one line per fact.
func (b *bench) machine(ctx context.Context) ([]string, error) {
	conn, err := pgx.Connect(ctx, b.postgres.URL())
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	var version, fsync, commit, buffers string
	err = conn.QueryRow(ctx, `SELECT current_setting('server_version'), current_setting('fsync'),
 current_setting('synchronous_commit'), current_setting('shared_buffers')`).Scan(&version, &fsync, &commit, &buffers)
	if err != nil {
		return nil, err
	}
	return []string{
		fmt.Sprintf("machine: %s, %d cores, %s, %s/%s", processor(), runtime.NumCPU(), memory(), runtime.GOOS,
			runtime.GOARCH),
		fmt.Sprintf("go: %s", runtime.Version()),
		fmt.Sprintf("postgres: %s on the same machine, fsync %s, synchronous_commit %s, shared_buffers %s", version, fsync,
			commit, buffers),
		fmt.Sprintf("messages: %d bytes of payload, one metadata entry, %s keys", payloadBytes, number(keys)),
	}, nil
}

func processor() string { return valueOf("/proc/cpuinfo", "model name", "unknown processor") }

func memory() string {
	var kb int
	if _, err := fmt.Sscan(valueOf("/proc/meminfo", "MemTotal", ""), &kb); err != nil {
		return "unknown memory"
	}
	return fmt.Sprintf("%d GB", (kb+1<<19)>>20)
}

// valueOf reads "name: value" from a file of Linux.
func valueOf(file, name, otherwise string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return otherwise
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return otherwise
}
