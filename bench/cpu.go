package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

const clockTick = 10 * time.Millisecond // the unit of /proc, on every Linux that Go runs on

// serverCPU returns the processor time that all processes of the server have used so far, including ended ones. It
// needs Linux and a server on this machine.
func (d *database) serverCPU(ctx context.Context) (time.Duration, error) {
	var backend int
	if err := d.pool.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&backend); err != nil {
		return 0, err
	}
	own, err := cpuOf(fmt.Sprintf("/proc/%d/stat", backend))
	if err != nil {
		return 0, fmt.Errorf("processor time of the server: %w", err)
	}
	server, err := cpuOf(fmt.Sprintf("/proc/%d/stat", own.parent))
	if err != nil {
		return 0, fmt.Errorf("processor time of the server: %w", err)
	}
	total := server.own + server.ended
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		if c, err := cpuOf(file); err == nil && c.parent == own.parent {
			// a process that has just ended is in server.ended next time
			total += c.own
		}
	}
	return total, nil
}

// cpu is the processor time of a process.
type cpu struct {
	parent     int
	own, ended time.Duration // its own, and the time of children it has waited for
}

func cpuOf(file string) (cpu, error) {
	stat, err := os.ReadFile(file)
	if err != nil {
		return cpu{}, err
	}
	// The program's name, in parentheses, may contain anything. See proc_pid_stat(5) for the fields after it.
	var state string
	var parent int
	var skip [9]int64
	var user, system, endedUser, endedSystem int64
	fields := []any{&state, &parent}
	for i := range skip {
		fields = append(fields, &skip[i])
	}
	fields = append(fields, &user, &system, &endedUser, &endedSystem)
	if _, err := fmt.Sscan(string(stat[bytes.LastIndexByte(stat, ')')+1:]), fields...); err != nil {
		return cpu{}, err
	}
	return cpu{parent, time.Duration(user+system) * clockTick, time.Duration(endedUser+endedSystem) * clockTick}, nil
}
