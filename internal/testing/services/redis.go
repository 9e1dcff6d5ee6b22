package services

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Redis is a Redis server. Its methods are safe for concurrent use.
type Redis struct{ *daemon }

// StartRedis starts a server with settings such as "appendonly yes". Without any it has the defaults of Redis, which
// only writes snapshots. It returns [ErrNotInstalled] if the machine has no redis-server. As root it runs as user
// postgres or else nobody.
func StartRedis(ctx context.Context, opts Options, settings ...string) (*Redis, error) {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("redis: %w", ErrNotInstalled)
	}
	as, err := unprivileged()
	if err != nil {
		return nil, fmt.Errorf("start redis: %w", err)
	}
	f, err := newFolder(as)
	if err != nil {
		return nil, fmt.Errorf("start redis: %w", err)
	}
	r := &Redis{}
	r.daemon = &daemon{
		name: "redis", account: as, folder: f, opts: opts,
		stop:    syscall.SIGTERM,
		discard: syscall.SIGKILL,
		prepare: func(context.Context) error { return nil },
		command: func(port int) (*exec.Cmd, error) {
			args := []string{"--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", f.path}
			for _, setting := range settings {
				name, values, _ := strings.Cut(setting, " ")
				args = append(append(args, "--"+name), strings.Fields(values)...)
			}
			return exec.Command(program, args...), nil
		},
		ready: func(ctx context.Context) error { return r.isOurs(ctx, f.path) },
	}
	if err := r.launch(ctx); err != nil {
		return nil, err
	}
	opts.say("redis from %s on %s", program, r.Address())
	return r, nil
}

// Address returns the server's host:port. It stays the same across Restart.
func (r *Redis) Address() string { return address(r.port) }

// isOurs queries the server for its folder, which also fails while it loads its data.
func (r *Redis) isOurs(ctx context.Context, folder string) error {
	dialer := net.Dialer{Timeout: readyTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", address(r.port))
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(readyTimeout)); err != nil {
		return err
	}
	if _, err := fmt.Fprint(conn, "EXISTS ready\r\nCONFIG GET dir\r\n"); err != nil {
		return err
	}
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "-"):
			return errors.New(line)
		case line == folder:
			return nil
		case strings.HasPrefix(line, "/"):
			return errors.New("another server has this port")
		}
	}
	return errors.New("no answer")
}
