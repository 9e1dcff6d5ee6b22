package integration_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"io"
	"math/big"
	"net"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/queue"
)

// encryptingProxy takes Postgres connections by TLS alone and passes them on. It returns the URL of the database behind
// it.
func encryptingProxy(t testing.TB, database string) (through string, encrypted *atomic.Int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cfg := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	server, err := url.Parse(database)
	require.NoError(t, err)
	upstream := server.Host
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { listener.Close() })
	encrypted = &atomic.Int64{}
	serve := func(conn net.Conn) {
		defer conn.Close()
		const request = 80877103 // SSLRequest
		var head [8]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil || binary.BigEndian.Uint32(head[4:]) != request {
			t.Errorf("a connection in clear: %x %v", head, err)
			return
		}
		if _, err := conn.Write([]byte("S")); err != nil {
			return
		}
		secret := tls.Server(conn, cfg)
		if err := secret.Handshake(); err != nil {
			t.Error(err)
			return
		}
		to, err := net.Dial("tcp", upstream)
		if err != nil {
			t.Error(err)
			return
		}
		defer to.Close()
		encrypted.Add(1)
		go func() { _, _ = io.Copy(to, secret); to.Close() }()
		_, _ = io.Copy(secret, to)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	server.Host, server.RawQuery = listener.Addr().String(), "sslmode=require"
	return server.String(), encrypted
}

// TestQueueOverEncryptedConnections: all connections of a Dispatcher, that for LISTEN too, are those of the pool, and
// encrypted if it says so.
func TestQueueOverEncryptedConnections(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	through, encrypted := encryptingProxy(t, newMigratedDatabase(t))
	h := newPgxHandle(t, through)
	s := storeOn(t, h, quickStore())
	done := make(chan bool, 1)
	dispatching(t, s, quickDispatcher(map[string]queue.Handler{
		"orders": {Handle: func(context.Context, *queue.Message) error {
			done <- true
			return nil
		}},
	}))
	storeAll(t, s, items("orders", 1)...)
	<-done
	untilState(t, s, itemID("orders", 0), queue.Done)
	assert.GreaterOrEqual(t, encrypted.Load(), int64(2))
	eventually(t, func() bool {
		return h.count(t,
			"select count(*) from pg_stat_activity where datname = current_database() and query ilike 'listen%'") > 0
	}, "it listens")
}
