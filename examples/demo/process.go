package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
)

// forwardArg makes this program only a forwarder; addressesEnv has its Addresses.
const (
	forwardArg   = "forward"
	addressesEnv = "OUTBOX_DEMO_ADDRESSES"
)

// forwarderProcess is this program, started again as a forwarder.
type forwarderProcess struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	exited chan struct{}
}

func startForwarder(at Addresses, log *os.File) (*forwarderProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	where, err := json.Marshal(at)
	if err != nil {
		return nil, err
	}
	p := &forwarderProcess{cmd: exec.Command(self, forwardArg), exited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), addressesEnv+"="+string(where))
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a forwarder process: %w", err)
	}
	go func() {
		defer close(p.exited)
		_ = p.cmd.Wait() // how it ended shows in the counts
	}()
	return p, nil
}

func (p *forwarderProcess) pid() int { return p.cmd.Process.Pid }

// kill ends the process without giving it a chance to settle anything.
func (p *forwarderProcess) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// stop stops the process gracefully.
func (p *forwarderProcess) stop() {
	_ = p.stdin.Close()
	<-p.exited
}

// forwardOnly is the main function of such a process. It stops gracefully when its standard input ends, and therefore
// also when its parent process is gone.
func forwardOnly(ctx context.Context, e Example, logger watermill.LoggerAdapter) error {
	var at Addresses
	if err := json.Unmarshal([]byte(os.Getenv(addressesEnv)), &at); err != nil {
		return fmt.Errorf("%s: %w", addressesEnv, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	pool, err := pgxpool.New(ctx, at.Forwarder)
	if err != nil {
		return err
	}
	defer pool.Close()
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, logger)
	if err != nil {
		return err
	}
	return e.forward(ctx, db, at, logger)
}
