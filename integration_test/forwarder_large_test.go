package integration_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// newNarrowProxy passes on replies of the server at this many bytes a second, for all connections together.
func newNarrowProxy(t testing.TB, database string, bytesPerSecond int) (url string) {
	t.Helper()
	var mu sync.Mutex
	free := time.Now() // when everything passed on so far has been sent
	return startProxy(t, database, passOn, func(to, from net.Conn, over <-chan struct{}) {
		buf := make([]byte, 16<<10)
		for {
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			mu.Lock()
			if now := time.Now(); free.Before(now) {
				free = now
			}
			free = free.Add(time.Duration(n) * time.Second / time.Duration(bytesPerSecond))
			wait := time.Until(free)
			mu.Unlock()
			select {
			case <-time.After(wait):
			case <-over:
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
	})
}

// insertLarge commits messages of a size, each with its own key, with payloads that compress well. They are numbered
// within their topic.
func insertLarge(t testing.TB, h handle, topic string, n, size int) {
	t.Helper()
	h.exec(t, `WITH payload AS MATERIALIZED (SELECT convert_to(repeat('x', $3), 'UTF8') AS p)
		INSERT INTO outbox (uuid, topic, key, payload) SELECT $1 || i, $1, $1 || i, p FROM payload, generate_series(1, $2::int) i`, topic, n, size)
}

// TestLargeMessagesOverANarrowLink: one message of each lane takes longer than a statement may. They are read
// nevertheless, fewer at a time, and small messages do not wait for all of them.
func TestLargeMessagesOverANarrowLink(t *testing.T) {
	extended(t)
	parallel(t)
	const large, size, small = 64, 256 << 10, 500
	direct := newPgxHandle(t, newMigratedDatabase(t))
	insertLarge(t, direct, "large", large, size)
	direct.exec(t, `INSERT INTO outbox (uuid, topic, key, payload)
		SELECT 'small' || i, 'small', 'small' || i % 100, convert_to('small' || i, 'UTF8') FROM generate_series(1, $1::int) i`, small)
	cfg := quickConfig()
	cfg.QueryTimeout = 2 * time.Second
	var published sync.Map
	var n atomic.Int64
	done := make(chan struct{})
	pub := publisherFunc(func(_ string, msg *message.Message) error {
		if _, again := published.LoadOrStore(msg.UUID, true); !again && n.Add(1) == large+small {
			close(done)
		}
		return nil
	})
	runForwarder(t, newPgxHandle(t, newNarrowProxy(t, direct.url, 4<<20)), pub, cfg, nil)
	select {
	case <-done:
	case <-time.After(patience):
		t.Errorf("%d of %d messages were published", n.Load(), large+small)
	}
}

// TestMessageThatTakesLongerThanAStatementMay: a single message cannot be read within QueryTimeout.
func TestMessageThatTakesLongerThanAStatementMay(t *testing.T) {
	extended(t)
	parallel(t)
	direct := newPgxHandle(t, newMigratedDatabase(t))
	insertLarge(t, direct, "large", 1, 6<<20)
	cfg := quickConfig()
	cfg.QueryTimeout = time.Second
	done := make(chan struct{})
	var once sync.Once
	pub := publisherFunc(func(string, *message.Message) error { once.Do(func() { close(done) }); return nil })
	runForwarder(t, newPgxHandle(t, newNarrowProxy(t, direct.url, 4<<20)), pub, cfg, nil)
	within(t, "the message is published", done)
}

// TestMessagesOf64MBArrive: they are more than one read can return in its time.
func TestMessagesOf64MBArrive(t *testing.T) {
	extended(t)
	parallel(t)
	n := 4
	if os.Getenv("OUTBOX_LONG") != "" {
		n = 24
	}
	h := newPgxHandle(t, newMigratedDatabase(t))
	insertLarge(t, h, "large", n, 64<<20)
	w := newFakeSizes(n)
	runForwarder(t, h, w, quickConfig(), nil)
	within(t, "all messages are published", w.done)
	assert.EqualValues(t, n*(64<<20), w.bytes.Load())
}

// publisherFunc is a publisher of single messages.
type publisherFunc func(topic string, msg *message.Message) error

func (f publisherFunc) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		if err := f(topic, msg); err != nil {
			return err
		}
	}
	return nil
}

func (publisherFunc) Close() error { return nil }

// fakeSizes is a publisher that counts messages and bytes.
type fakeSizes struct {
	left, bytes atomic.Int64
	done        chan struct{}
}

func newFakeSizes(n int) *fakeSizes {
	s := &fakeSizes{done: make(chan struct{})}
	s.left.Store(int64(n))
	return s
}

func (s *fakeSizes) Publish(_ string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		s.bytes.Add(int64(len(msg.Payload)))
		if s.left.Add(-1) == 0 {
			close(s.done)
		}
	}
	return nil
}

func (s *fakeSizes) Close() error { return nil }

// aloneEnv makes this test binary the process whose memory is measured; it names the database.
const aloneEnv = "OUTBOX_TEST_ALONE"

// TestMemoryOfLargeMessages: a forwarder's memory depends on its read-ahead limit and on the largest message, not on
// the number of large ones, even while none can be published.
func TestMemoryOfLargeMessages(t *testing.T) {
	extended(t)
	const n, size, room = 20, 16 << 20, 32 << 20
	if url := os.Getenv(aloneEnv); url != "" {
		forwardAlone(t, url, n)
		return
	}
	h := onPgx(t)
	insertLarge(t, h, "large", n, size)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMemoryOfLargeMessages$", "-test.v")
	// measure the limit, not a late garbage collection
	cmd.Env = append(os.Environ(), aloneEnv+"="+h.url, "GOGC=25")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	_, text, ok := strings.Cut(string(out), "heap ")
	require.True(t, ok, "%s", out)
	text, _, _ = strings.Cut(text, " ")
	heap, err := strconv.Atoi(text)
	require.NoError(t, err)
	// Twice the read-ahead limit plus one message, and the next message as it arrives and as it is copied; the garbage
	// collector may double that.
	const most = 2*(2*room+3*size) + 32<<20
	assert.LessOrEqual(t, heap, most)
	t.Logf("%d MB of heap, %d allowed", heap>>20, most>>20)
}

// forwardAlone publishes n messages, after a time in which it publishes none, and prints the maximum size of its heap.
func forwardAlone(t *testing.T, url string, n int) {
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	defer pool.Close()
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
	require.NoError(t, err)
	count := newFakeSizes(n)
	reads := make(chan struct{}, 1000)
	goOn := make(chan struct{})
	pub := publisherFunc(func(topic string, msg *message.Message) error {
		reads <- struct{}{}
		<-goOn
		return count.Publish(topic, msg)
	})
	f, err := forwarder.New(db, pub, quickConfig(), nil)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() { failed <- f.Run(ctx) }()
	within(t, "a message is published", reads)
	for came := true; came; { // until nothing more is read ahead
		select {
		case <-reads:
		case <-time.After(500 * time.Millisecond):
			came = false
		}
	}
	close(goOn)
	within(t, "all messages are published", count.done)
	stop()
	require.NoError(t, <-failed)
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	fmt.Printf("heap %d bytes\n", m.HeapSys)
}

// TestSmallMessagesNeedOneStatement: with messages of usual sizes, a few of them larger, each read is one statement.
func TestSmallMessagesNeedOneStatement(t *testing.T) {
	parallel(t)
	const n = 3000
	h, gate := newStatementGate(t, newMigratedDatabase(t))
	var second atomic.Int64
	gate.onRun(sqltext.FetchPayloads, func() { second.Add(1) })
	h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload) SELECT 'm' || i, 'events', 'key' || i % 100,
		convert_to(repeat('x', CASE WHEN i % 10 = 0 THEN 5000 ELSE 500 END), 'UTF8') FROM generate_series(1, $1::int) i`, n)
	count := newFakeSizes(n)
	runForwarder(t, h, count, quickConfig(), nil)
	within(t, "all messages are published", count.done)
	assert.Zero(t, second.Load())
}
