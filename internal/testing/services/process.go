package services

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// process is a started child.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once the child has been waited for
	err  error         // result of Wait, valid after done
}

// startProcess starts cmd, whose output must go to files and not to pipes: an orphan that holds a pipe open would
// prevent Wait from returning.
//
// Linux sends the parent-death signal when the thread that started the child ends, so one goroutine occupies that
// thread until the child is gone.
func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) alive() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// end sends the signal and waits until the child is gone, killing it if that takes longer than patience.
func (p *process) end(s os.Signal, patience time.Duration) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		_ = p.cmd.Process.Kill() // Windows supports no other signal
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(patience):
	}
	_ = p.cmd.Process.Kill()
	<-p.done
	return fmt.Errorf("still running %v after %q, killed", patience, s)
}

// runCommand runs a short-lived program to its end and returns its output in the error if it fails.
func runCommand(ctx context.Context, cmd *exec.Cmd) error {
	out, err := os.CreateTemp("", "watermill-outbox-*.log")
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	return runLogged(ctx, cmd, out)
}

// runLogged is runCommand with a file for the output.
func runLogged(ctx context.Context, cmd *exec.Cmd, out *os.File) error {
	cmd.Stdout, cmd.Stderr = out, out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = childAttributes(nil, os.Kill)
	}
	p, err := startProcess(cmd)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		_ = p.cmd.Process.Kill()
		<-p.done
		return ctx.Err()
	}
	if p.err != nil {
		return fmt.Errorf("%w: %s", p.err, tail(out.Name()))
	}
	return nil
}

const maxTail = 2000 // bytes

// tail returns the last lines of a log for an error message.
func tail(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	text := strings.TrimSpace(string(content))
	if len(text) > maxTail {
		text = "..." + text[len(text)-maxTail:]
	}
	return text
}
