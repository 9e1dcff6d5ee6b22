package main

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
)

// asCommand makes this test binary the command under test.
const asCommand = "WITH_SERVICES_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		os.Exit(run())
	}
	os.Exit(m.Run())
}

func withServices(t *testing.T, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = []string{asCommand + "=1", "CI=" + os.Getenv("CI")}
	for _, name := range []string{
		"PATH", "HOME", "TMPDIR", "SystemRoot", "OUTBOX_POSTGRES_BIN", "OUTBOX_POSTGRES_VERSION",
	} {
		if value, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	return cmd, &said
}

func TestRunsTheCommandWithServers(t *testing.T) {
	t.Parallel()
	cmd, said := withServices(t, "-postgres", "-nats", "--", "sh", "-c",
		`echo "$OUTBOX_POSTGRES_URL"; echo "$OUTBOX_NATS_URL"; echo "kafka=$OUTBOX_KAFKA_BROKERS"; read go; exit 7`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	var lines []string
	for s := bufio.NewScanner(out); len(lines) < 3 && s.Scan(); {
		lines = append(lines, s.Text())
	}
	if len(lines) != 3 {
		_ = cmd.Wait()
		t.Fatalf("got %q; %s", lines, said)
	}
	if lines[2] != "kafka=" {
		t.Errorf("Kafka was not requested, got %s", lines[2])
	}
	dial := func() (postgres, nc error) {
		conn, postgres := pgx.Connect(t.Context(), lines[0])
		if postgres == nil {
			postgres = conn.Close(t.Context())
		}
		n, nc := nats.Connect(lines[1])
		if nc == nil {
			n.Close()
		}
		return postgres, nc
	}
	if postgres, nc := dial(); postgres != nil || nc != nil {
		t.Errorf("servers do not answer: %v, %v", postgres, nc)
	}
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 7 {
		t.Errorf("exit status %d, want 7; %s", code, said)
	}
	if postgres, nc := dial(); postgres == nil || nc == nil {
		t.Errorf("servers still answer: %v, %v", postgres, nc)
	}
}

func TestPassesSignalsOn(t *testing.T) {
	t.Parallel()
	cmd, said := withServices(t, "--", "sh", "-c", `trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done`)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("got %q: %v", line, err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 9 {
		t.Errorf("exit status %d, want 9; %s", code, said)
	}
}

func TestExitStatus(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args string
		env  string
		want int
	}{
		{args: "", want: exitUsage},
		{args: "-- true", want: 0},
		{args: "-- no-such-program", want: exitNoCommand},
		{args: "-postgres -- true", env: "OUTBOX_POSTGRES_BIN=/nowhere", want: exitNoService},
	} {
		cmd, said := withServices(t, strings.Fields(c.args)...)
		cmd.Env = append(cmd.Env, c.env)
		_ = cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != c.want {
			t.Errorf("%q: exit status %d, want %d; %s", c.args, code, c.want, said)
		}
	}
	cmd, said := withServices(t, "--", "sh", "-c", "kill -9 $$")
	_ = cmd.Run()
	if code := cmd.ProcessState.ExitCode(); code != 128+9 {
		t.Errorf("killed command: exit status %d; %s", code, said)
	}
}
