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

// childEnv makes this test binary run one of children instead of tests: its name, a space, and its settings as JSON.
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

// process is a child process, as seen by its parent.
type process struct {
	cmd   *exec.Cmd
	input io.Closer // a child ends when its input does
	log   *logTail
	gone  chan struct{} // closed when it has ended
	err   error
}

// newProcess prepares a child. It is in its own process group: if this process dies, the system also ends a stopped
// child.
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

// start runs the child until the test ends, and logs its output if the test fails.
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

// end ends the child gracefully.
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
