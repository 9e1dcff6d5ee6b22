package services

import (
	"errors"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRedisKeepsWhatItSyncedWhenItIsKilled(t *testing.T) {
	r, err := StartRedis(t.Context(), Options{Log: io.Discard}, "appendonly yes", "appendfsync always")
	if errors.Is(err, ErrNotInstalled) && !InCI() {
		t.Skip("no Redis on this machine: this test did not run")
	}
	require.NoError(t, err)
	ask := func(command string) string {
		conn, err := net.Dial("tcp", r.Address())
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.Write([]byte(command + "\r\n"))
		require.NoError(t, err)
		answer := make([]byte, 64)
		n, err := conn.Read(answer)
		require.NoError(t, err)
		return string(answer[:n])
	}
	require.Equal(t, "+OK\r\n", ask("SET a b"))
	require.NoError(t, r.Kill())
	require.NoError(t, r.Restart(t.Context()))
	require.Equal(t, "$1\r\nb\r\n", ask("GET a"))

	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	wantGone(t, r.daemon)
}
