package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// exampleRuns lets the event-sourced accounts that examples has built publish on a database, looks at them with the
// outboxctl that commands has installed, and ends them.
func (r *rehearsal) exampleRuns(ctx context.Context) (string, error) {
	if r.untagged != nil {
		return "", r.untagged
	}
	const name, topic = "eventsourced", "accounts"
	servers := filepath.Join(r.work, "with-services")
	source := filepath.Join(r.clone, "internal", "services")
	if _, err := output(ctx, source, nil, "go", "build", "-o", servers, "./cmd/with-services"); err != nil {
		return "", err
	}
	database, stop, err := startDatabase(ctx, servers)
	if err != nil {
		return "", err
	}
	defer stop()

	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	program := filepath.Join(r.work, "outside", example{name: name}.module(), name+".program")
	cmd := exec.CommandContext(ctx, program, "acme", "deposit", "100", "withdraw", "30")
	cmd.Env = append(os.Environ(), "DATABASE_URL="+database)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for published := false; !published; {
		select {
		case err := <-ended:
			return "", fmt.Errorf("examples/%s ended: %w\n%s", name, err, lastLines(said.String()))
		case <-time.After(200 * time.Millisecond):
		}
		published, err = r.hasPublished(ctx, database, topic)
		if err != nil && ctx.Err() != nil {
			<-ended
			return "", fmt.Errorf("examples/%s published nothing: %w\n%s", name, err, lastLines(said.String()))
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return "", err
	}
	if err := <-ended; err != nil {
		return "", fmt.Errorf("examples/%s does not end well: %w\n%s", name, err, lastLines(said.String()))
	}
	return "examples/" + name + " published, and ended when it was told to", nil
}

// startDatabase says where the database is. It lives until stop closes the standard input of what keeps it.
func startDatabase(ctx context.Context, servers string) (url string, stop func(), err error) {
	cmd := exec.CommandContext(ctx, servers, "-postgres", "--", "sh", "-c", `echo "$OUTBOX_POSTGRES_URL"; cat >/dev/null`)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		_ = in.Close()
		_ = cmd.Wait()
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		stop()
		return "", nil, fmt.Errorf("no database could be started: %w", err)
	}
	return strings.TrimSpace(line), stop, nil
}

// hasPublished asks outboxctl, which fails as long as there are no tables.
func (r *rehearsal) hasPublished(ctx context.Context, database, topic string) (bool, error) {
	var errs error
	for _, m := range r.commandModules() {
		said, err := output(ctx, r.work, nil, r.installed(m), "stats", "--output", "json", "--dsn", database)
		if err != nil {
			errs = err
			continue
		}
		var stats struct {
			Topics []struct {
				Topic string
				Rate  float64
			}
		}
		if err := json.Unmarshal([]byte(said), &stats); err != nil {
			return false, err
		}
		for _, t := range stats.Topics {
			if t.Topic == topic && t.Rate > 0 {
				return true, nil
			}
		}
	}
	return false, errs
}
