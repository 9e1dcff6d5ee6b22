package services

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// helper starts a Postgres and, if requested and installed, a Kafka, prints their processes and folders, and waits to
// be ended.
func helper() int {
	StopOnSignal()
	ctx := context.Background()
	opts := Options{Log: io.Discard, QuickStart: true}
	p, err := StartPostgres(ctx, opts)
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	fmt.Println(p.process.cmd.Process.Pid, p.folder.root)
	if os.Getenv(asHelper) == withKafka {
		k, err := StartKafka(ctx, opts)
		switch {
		case err == nil:
			fmt.Println(k.process.cmd.Process.Pid, k.folder.root)
		case !errors.Is(err, ErrNotInstalled) || InCI():
			fmt.Println("error", err)
			return 1
		}
	}
	fmt.Println("ready")
	select {}
}

type child struct {
	pid  int
	root string
}

const (
	withKafka    = "kafka"
	postgresOnly = "postgres"
)

func startHelper(t *testing.T, what string) (*exec.Cmd, []child) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asHelper+"="+what)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	var children []child
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "ready" {
		var c child
		if _, err := fmt.Sscan(lines.Text(), &c.pid, &c.root); err != nil {
			t.Fatalf("helper printed %q", lines.Text())
		}
		if !runs(c.pid) {
			t.Fatalf("process %d does not run", c.pid)
		}
		children = append(children, c)
		for _, pid := range childrenOf(c.pid) {
			children = append(children, child{pid, c.root})
		}
	}
	if lines.Err() != nil || len(children) == 0 {
		t.Fatalf("helper did not start: %v", lines.Err())
	}
	return cmd, children
}

// runs reports whether the process exists and is not a zombie: an orphan's zombie may stay if nothing reaps it.
func runs(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestDeathOfParent(t *testing.T) {
	t.Parallel()
	cmd, children := startHelper(t, withKafka)
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	for _, c := range children {
		eventually(t, fmt.Sprintf("process %d ends", c.pid), func() bool { return !runs(c.pid) })
	}

	sweep()
	long := time.Now().Add(-time.Hour)
	for _, c := range children {
		if _, err := os.Stat(c.root); err != nil {
			t.Errorf("sweep removed a folder that may be in use: %v", err)
		}
		must(t, os.Chtimes(c.root, long, long))
	}
	eventually(t, "folders of the dead parent are removed", func() bool {
		sweep()
		left := 0
		for _, c := range children {
			if _, err := os.Stat(c.root); err == nil {
				left++
			}
		}
		return left == 0
	})
}

func TestSignalToParent(t *testing.T) {
	t.Parallel()
	cmd, children := startHelper(t, postgresOnly)
	must(t, cmd.Process.Signal(syscall.SIGTERM))
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 128+int(syscall.SIGTERM) {
		t.Errorf("exit status %d", code)
	}
	for _, c := range children {
		if runs(c.pid) {
			t.Errorf("process %d still runs", c.pid)
		}
		if _, err := os.Stat(c.root); err == nil {
			t.Errorf("folder %s is still there", c.root)
		}
	}
}

func TestSweepKeepsFoldersInUse(t *testing.T) {
	t.Parallel()
	f, err := newFolder(nil)
	must(t, err)
	defer f.Close()
	long := time.Now().Add(-time.Hour)
	must(t, os.Chtimes(f.root, long, long))
	sweep()
	if _, err := os.Stat(filepath.Join(f.root, "lock")); err != nil {
		t.Error(err)
	}
}

// TestChildOutlivesThreads ends threads of this process. A child must get its death signal only when the whole process
// ends.
func TestChildOutlivesThreads(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = childAttributes(nil, syscall.SIGKILL)
	started := make(chan *process)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		p, err := startProcess(cmd)
		if err != nil {
			t.Error(err)
		}
		started <- p
	}()
	p := <-started
	if p == nil {
		return
	}
	ended := make(chan struct{})
	for range 50 {
		go func() {
			runtime.LockOSThread()
			ended <- struct{}{}
		}()
	}
	for range 50 {
		<-ended
	}
	select {
	case <-p.done:
		t.Errorf("the child died with a thread: %v", p.err)
	case <-time.After(300 * time.Millisecond):
		must(t, p.end(syscall.SIGKILL, stopPatience))
	}
}
