//go:build unix

package integration_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// childEnv has this test binary run one of children instead of tests: its name, a space, and its settings as JSON.
const childEnv = "OUTBOX_TEST_CHILD"

var children = map[string]func(settings []byte) error{
	"worker": runChild, "queue": runQueueChild, "http": serveOrders, "inbound": runInbound,
}

func init() {
	name, settings, ok := strings.Cut(os.Getenv(childEnv), " ")
	if !ok {
		return
	}
	if err := children[name]([]byte(settings)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// process is a child as its parent sees it.
type process struct {
	cmd   *exec.Cmd
	input io.Closer // a child ends when its input does
	log   *logTail
	gone  chan struct{} // closed when it has ended
	err   error
}

// newProcess prepares a child. It is in a group of its own: should this process die, the system ends one that is
// stopped as well.
func newProcess(t testing.TB, child string, settings any) *process {
	t.Helper()
	spec, err := json.Marshal(settings)
	require.NoError(t, err)
	exe, err := os.Executable()
	require.NoError(t, err)
	p := &process{cmd: exec.Command(exe), log: &logTail{}, gone: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), childEnv+"="+child+" "+string(spec))
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return p
}

func startProcess(t testing.TB, child string, settings any) *process {
	t.Helper()
	p := newProcess(t, child, settings)
	p.start(t)
	return p
}

// start has the child end with the test, which logs its output if it has failed.
func (p *process) start(t testing.TB) {
	t.Helper()
	var err error
	p.input, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.gone)
		p.err = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("process %d:\n%s", p.cmd.Process.Pid, p.log)
		}
	})
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.gone
}

// end lets the child end in good order.
func (p *process) end(t testing.TB) {
	t.Helper()
	_ = p.input.Close()
	select {
	case <-p.gone:
		assert.NoError(t, p.err, p.log)
	case <-time.After(patience):
		t.Errorf("the process does not end: %s", p.log)
	}
}
