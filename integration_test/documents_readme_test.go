package integration_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// TestReadmeProgram builds the program of the README as it stands and lets it book two orders.
func TestReadmeProgram(t *testing.T) {
	t.Parallel()
	program := buildReadmeProgram(t)
	server := kafkaServer(t)
	url := newDatabase(t)
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	_, err = conn.Exec(t.Context(), "CREATE TABLE bookings (order_id text PRIMARY KEY)")
	require.NoError(t, err)

	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+url, "KAFKA_BROKERS="+strings.Join(server.Brokers(), ","))
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		if t.Failed() {
			t.Logf("the program said:\n%s", log.String())
		}
	})

	// The program makes its topics; publishing works once it has.
	orders := kafkaPublisher(t, server)
	for _, id := range []string{"order-1", "order-2"} {
		require.Eventually(t, func() bool {
			return orders.Publish("orders", message.NewMessage(watermill.NewUUID(), []byte(id))) == nil
		}, 5*time.Minute, 100*time.Millisecond)
	}
	booked := map[string]bool{}
	for _, msg := range consumeKafka(t, server, "bookings", 2) {
		booked[string(msg.Payload)] = true
	}
	require.Equal(t, map[string]bool{"order-1": true, "order-2": true}, booked)
	var count int
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM bookings").Scan(&count))
	require.Equal(t, 2, count)

	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(5 * time.Minute):
		t.Fatal("the program does not end")
	}
}

// buildReadmeProgram compiles the first program of the README as if it were a package of this module.
func buildReadmeProgram(t *testing.T) string {
	t.Helper()
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	_, after, found := strings.Cut(string(readme), "```go\npackage main\n")
	require.True(t, found, "the README has no program")
	source, _, _ := strings.Cut(after, "\n```\n")
	dir := t.TempDir()
	file := filepath.Join(dir, "main.go")
	require.NoError(t, os.WriteFile(file, []byte("package main\n"+source+"\n"), 0o644))
	here, err := os.Getwd()
	require.NoError(t, err)
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(here, "readme", "main.go"): file}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o644))

	program := filepath.Join(dir, "readme")
	args := append([]string{"build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", program}, raceFlag()...)
	out, err := exec.CommandContext(t.Context(), "go", append(args, "./readme")...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}
