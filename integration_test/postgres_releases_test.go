package integration_test

import (
	"bytes"
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
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/queue"
)

// postgresReleases are the supported releases, oldest first; `make test-matrix` runs all tests on each.
var postgresReleases = []string{"13.23.0", "14.24.0", "15.19.0", "16.15.0", "17.11.0", "18.6.0"}

// compatible matches tests of tables and statements, which another release of Postgres would break first. Partitions
// differ most between releases. make test-matrix covers order under load.
const compatible = `^(TestMigrateIsIdempotent|TestStoreJoinsTransactions|TestFirstMessageOfADatabase|` +
	`TestTxIsolationAndOnBegin|TestRoundTripsOnPgx|TestOperationsStatements|TestRoles|` +
	`TestMaintainPartitions|TestTransactionAcrossMaintenance|TestCheckOfPartitions|` +
	`TestMaintainPartitionsWhileTheDefaultHasMessages|TestLockedPartition|TestMaintenanceWaitsForNobody|` +
	`TestAutovacuumGivesWay)$`

// TestOldestAndNewestPostgres runs some tests again on other releases, each in a child process.
func TestOldestAndNewestPostgres(t *testing.T) {
	extended(t)
	needsPlainOutbox(t) // this run has a chosen kind of outbox
	t.Parallel()
	if os.Getenv("OUTBOX_POSTGRES_VERSION") != "" {
		return // this run has a chosen release
	}
	releases := []string{postgresReleases[0], postgresReleases[len(postgresReleases)-1]}
	for _, release := range releases {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", compatible, "-test.v")
			cmd.Env = append(os.Environ(), "OUTBOX_POSTGRES_VERSION="+release)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			passed := bytes.Count(out, []byte("\n--- PASS: "))
			require.Equal(t, strings.Count(compatible, "|")+1, passed, "%s", out)
			major, _, _ := strings.Cut(release, ".")
			require.Regexp(t, regexp.MustCompile(`postgres \(PostgreSQL\) `+major+`\.`), string(out))
		})
	}
}

// encryptingProxy accepts only TLS connections and forwards them to Postgres. It returns the URL of the database behind
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
			t.Errorf("an unencrypted connection: %x %v", head, err)
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

// TestQueueOverEncryptedConnections: all connections of a Dispatcher, including the one for LISTEN, use the pool's
// settings, and so its encryption.
func TestQueueOverEncryptedConnections(t *testing.T) {
	parallel(t)
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
	}, "the Dispatcher listens")
}

// TestQueueOfReadOnlyServer is TestReadOnlyServer for storing and handling messages: connections to a demoted server
// are replaced when a statement fails as read-only, even in a process that only stores messages.
func TestQueueOfReadOnlyServer(t *testing.T) {
	parallel(t)
	url := newMigratedDatabase(t)
	writer, worker, admin := newPgxHandle(t, url), newPgxHandle(t, url), newPgxHandle(t, url)
	store := storeOn(t, writer, quickStore())
	cfg := quickDispatcher(map[string]queue.Handler{"orders": {Handle: func(context.Context, *queue.Message) error {
		return nil
	}}})
	cfg.CleanInterval = -1
	cfg.LeaseTTL = 50 * time.Minute // only claims run
	dispatching(t, storeOn(t, worker, quickStore()), cfg)
	enqueued := func(i int) error {
		_, err := store.Enqueue(t.Context(), items("orders", i+1)[i])
		return err
	}
	assert.NoError(t, enqueued(0))
	untilState(t, storeOn(t, admin, quickStore()), itemID("orders", 0), queue.Done)

	database := value[string](t, admin, "select quote_ident(current_database())")
	admin.exec(t, "alter database "+database+" set default_transaction_read_only = on")
	before := worker.pool.Stat().NewConnsCount()
	admin.exec(t, "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "+
		"and pid <> pg_backend_pid()")
	eventually(t, func() bool { return text.SQLState(enqueued(1)) == drive.ReadOnlyServer }, "the server is read-only")
	eventually(t, func() bool { return worker.pool.Stat().NewConnsCount() > before },
		"claims have a connection to the server again")
	eventually(t, func() bool {
		_, err := (*core.DB)(admin.db).Exec(t.Context(), "alter database "+database+" reset default_transaction_read_only")
		return err == nil
	}, "the server is writable again") // earlier connections still cannot write
	eventually(t, func() bool { return enqueued(1) == nil }, "messages are stored again")
	untilState(t, storeOn(t, newPgxHandle(t, url), quickStore()), itemID("orders", 1), queue.Done)
}
