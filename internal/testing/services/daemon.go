package services

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	startTimeout    = 10 * time.Minute // see vigil, which ends most failing starts
	readyTimeout    = 30 * time.Second // of one request
	stopPatience    = 30 * time.Second
	firstAttempts   = 5   // each with a new port
	restartAttempts = 100 // with pauses: sockets and locks of a killed server take a while to disappear
	attemptPause    = 100 * time.Millisecond
	pollPause       = 20 * time.Millisecond
)

// daemon is a server program running as a child process, with its folder. Its methods are safe for concurrent use.
type daemon struct {
	name    string
	account *account
	folder  *folder
	opts    Options

	prepare func(ctx context.Context) error   // creates the data folder, once
	command func(port int) (*exec.Cmd, error) // called for every start
	ready   func(ctx context.Context) error   // one real request, which must recognise our server
	stop    os.Signal                         // ends it gracefully
	discard os.Signal                         // ends it quickly when its data is no longer needed
	revive  bool                              // after a crash it must run once more to release its resources

	mu       sync.Mutex
	port     int
	process  *process
	prepared bool
	clean    bool // the last end was not a crash
	closed   bool
}

// launch starts the daemon for the first time. From then on StopAll closes it.
func (d *daemon) launch(ctx context.Context) error {
	d.mu.Lock()
	register(d)
	err := d.start(ctx)
	d.mu.Unlock()
	if err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", d.name, err), d.Close())
	}
	return nil
}

// start requires mu to be held. If it fails, its error includes the path of the log.
func (d *daemon) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	stop := d.opts.watch("waiting for "+d.name, d.logPath())
	err := d.startUp(ctx)
	stop()
	if err == nil {
		return nil
	}
	if kept := d.keepLog(); kept != "" {
		return fmt.Errorf("%w (its log: %s)", err, kept)
	}
	return err
}

// keepLog copies a non-empty log out of the folder, which will be removed.
func (d *daemon) keepLog() string {
	content, err := os.ReadFile(d.logPath())
	if err != nil || len(content) == 0 {
		return ""
	}
	kept, err := os.CreateTemp("", "watermill-outbox-"+d.name+"-*.log")
	if err != nil {
		return ""
	}
	_, err = kept.Write(content)
	if errors.Join(err, kept.Close()) != nil {
		return ""
	}
	return kept.Name()
}

func (d *daemon) startUp(ctx context.Context) error {
	if d.closed {
		return errors.New("already closed")
	}
	if !d.prepared {
		if err := d.prepare(ctx); err != nil {
			return err
		}
	}
	attempts, first := restartAttempts, !d.prepared
	if first {
		attempts = firstAttempts
	}
	var err error
	for range attempts {
		if first {
			if d.port, err = freePort(); err != nil {
				return err
			}
		}
		if err = d.attempt(ctx); err == nil {
			d.prepared = true
			return nil
		}
		if d.process.alive() {
			return errors.Join(err, d.process.end(os.Kill, stopPatience))
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(attemptPause):
		}
	}
	return err
}

// attempt starts the program and waits until it is ready, ends or hangs, or ctx ends.
func (d *daemon) attempt(ctx context.Context) error {
	cmd, err := d.command(d.port)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(d.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	d.inFolder(cmd)
	d.clean = false
	if d.process, err = startProcess(cmd); err != nil {
		return err
	}
	for v := (vigil{}); ; {
		err := d.ready(ctx)
		if err == nil && d.process.alive() {
			return nil
		}
		select {
		case <-d.process.done:
			return fmt.Errorf("ended while starting: %v: %s", d.process.err, tail(log.Name()))
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w: %w: %s", ctx.Err(), err, tail(log.Name()))
		case <-time.After(pollPause):
		}
		if v.hangs(time.Now(), fileSize(log.Name())) {
			return fmt.Errorf("not ready, and nothing new in its log for %v: %w: %s", stallTimeout, err, tail(log.Name()))
		}
	}
}

func (d *daemon) logPath() string { return filepath.Join(d.folder.root, d.name+".log") }

// inFolder makes cmd run in the daemon's folder as its account, without the caller's PG* variables.
func (d *daemon) inFolder(cmd *exec.Cmd) {
	cmd.Dir = d.folder.path
	cmd.SysProcAttr = childAttributes(d.account, d.discard)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PG") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "HOME="+d.folder.path, "LC_ALL=C")
}

// Stop ends the server gracefully and keeps its data for Restart. It does nothing if the server is not running.
func (d *daemon) Stop() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.end(d.stop)
}

// Kill ends the server with all its processes like a crash, and returns once it is gone. The operating system's cache
// survives, so this does not simulate a power failure.
func (d *daemon) Kill() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.process.alive() {
		// Without its parent a busy Postgres backend survives for seconds and prevents a restart.
		killTree(d.process.cmd.Process.Pid)
		<-d.process.done
	}
	d.clean = false
	return nil
}

// Freeze stops the server's processes until Thaw. Its connections stay open but silent, so to others it is cut off.
func (d *daemon) Freeze() error { return d.frozen("freeze", true) }

// Thaw resumes a frozen server.
func (d *daemon) Thaw() error { return d.frozen("thaw", false) }

func (d *daemon) frozen(verb string, yes bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.process.alive() {
		return fmt.Errorf("%s %s: it does not run", verb, d.name)
	}
	return setFrozen(d.process.cmd.Process.Pid, yes)
}

// Restart starts the server again on the same port and data, stopping it first if it is running. It returns once the
// server replies; ctx limits the wait, which is never longer than ten minutes.
func (d *daemon) Restart(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.end(d.stop); err != nil {
		return err
	}
	if err := d.start(ctx); err != nil {
		return fmt.Errorf("restart %s: %w", d.name, err)
	}
	return nil
}

// Close ends the server for good and removes its data. Later calls do nothing.
func (d *daemon) Close() error {
	defer unregister(d)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	if d.revive && d.prepared && !d.process.alive() && !d.clean {
		_ = d.start(context.Background())
	}
	d.closed = true
	return errors.Join(d.end(d.discard), d.folder.Close())
}

// end requires mu to be held.
func (d *daemon) end(s os.Signal) error {
	if !d.process.alive() {
		return nil
	}
	if err := d.process.end(s, stopPatience); err != nil {
		return fmt.Errorf("stop %s: %w", d.name, err)
	}
	d.clean = true
	return nil
}
