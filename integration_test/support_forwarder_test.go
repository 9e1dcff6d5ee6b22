package integration_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
)

// quickConfig is a forwarder's configuration with short waits, but a long lease that no test should wait for: if it
// expired on a busy machine, messages would be sent twice and failures not counted, and tests that count would fail.
func quickConfig() forwarder.Config {
	return forwarder.Config{
		PollInterval: 50 * time.Millisecond, LeaseTTL: time.Minute, CloseTimeout: 10 * time.Second,
		Backoff:       outbox.Backoff{Initial: 20 * time.Millisecond, Max: 100 * time.Millisecond},
		OutageBackoff: outbox.Backoff{Initial: 20 * time.Millisecond, Max: 100 * time.Millisecond},
	}
}

// shortLease is for a forwarder whose lease must expire.
func shortLease(cfg forwarder.Config) forwarder.Config {
	cfg.LeaseTTL = time.Second
	return cfg
}

// sharing is for forwarders that must notice one another, which they do when they renew their leases: every two
// seconds, and up to four more on a busy machine.
func sharing(cfg forwarder.Config) forwarder.Config {
	cfg.LeaseTTL = 6 * time.Second
	return cfg
}

// fakeBroker is a publisher that records accepted messages by payload. The test decides its results.
type fakeBroker struct {
	mu     sync.Mutex
	answer func(topic string, msg *message.Message) error // called outside the lock; nil = accept everything
	taken  []taken
	seen   map[string]bool
	tried  map[string]int
	news   chan struct{} // closed and replaced at each attempt
}

type taken struct {
	topic, payload, key, uuid string
	at                        time.Time
}

func newFakeBroker() *fakeBroker {
	return &fakeBroker{seen: map[string]bool{}, tried: map[string]int{}, news: make(chan struct{})}
}

func (b *fakeBroker) answers(f func(topic string, msg *message.Message) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer = f
}

func (b *fakeBroker) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		payload := string(msg.Payload)
		b.mu.Lock()
		answer := b.answer
		b.tried[payload]++
		close(b.news)
		b.news = make(chan struct{})
		b.mu.Unlock()
		if answer != nil {
			if err := answer(topic, msg); err != nil {
				return err
			}
		}
		b.mu.Lock()
		b.seen[payload] = true
		b.taken = append(b.taken, taken{topic, payload, msg.Metadata[outbox.MetadataKey], msg.UUID, time.Now()})
		close(b.news)
		b.news = make(chan struct{})
		b.mu.Unlock()
	}
	return nil
}

func (b *fakeBroker) Close() error { return nil }

// all returns all accepted messages.
func (b *fakeBroker) all() []taken {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.taken)
}

// payloads returns accepted payloads without repetitions, only those of a key if given.
func (b *fakeBroker) payloads(key ...string) []string {
	var list []string
	seen := map[string]bool{}
	for _, m := range b.all() {
		if (len(key) == 0 || slices.Contains(key, m.key)) && !seen[m.payload] {
			seen[m.payload] = true
			list = append(list, m.payload)
		}
	}
	return list
}

func (b *fakeBroker) triedTimes(payload string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tried[payload]
}

func (b *fakeBroker) wait(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		b.mu.Lock()
		news := b.news
		b.mu.Unlock()
		if condition() {
			return
		}
		select {
		case <-news:
		case <-deadline:
			t.Fatalf("did not happen within %s: %s; %d messages were accepted", patience, what, len(b.all()))
		}
	}
}

// arrives waits until all payloads were accepted.
func (b *fakeBroker) arrives(t testing.TB, payloads ...string) {
	t.Helper()
	left := payloads
	b.wait(t, fmt.Sprintf("%v arrive", payloads[:min(5, len(payloads))]), func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		for len(left) > 0 && b.seen[left[0]] {
			left = left[1:]
		}
		return len(left) == 0
	})
}

// world is a database with a forwarder to a fake broker.
type world struct {
	handle
	*fakeBroker
	*forwarder.Forwarder
	log logCapture
}

// startForwarder runs a forwarder with its own broker until the test ends.
func startForwarder(t testing.TB, h handle, cfg forwarder.Config) world {
	t.Helper()
	return startForwarderOn(t, h, cfg, nil)
}

// join runs another forwarder to the same broker.
func (w world) join(t testing.TB, h handle, cfg forwarder.Config) *forwarder.Forwarder {
	t.Helper()
	return runForwarder(t, h, w.fakeBroker, cfg, w.log)
}

// publish writes messages of a key in one transaction, with any content.
func (h handle) publish(t testing.TB, topic, key string, payloads ...string) {
	t.Helper()
	require.NoError(t, h.tryPublish(topic, key, payloads...))
}

func (h handle) tryPublish(topic, key string, payloads ...string) error {
	pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
	if err != nil {
		return err
	}
	var msgs []*message.Message
	for _, p := range payloads {
		msg := newMessage(p)
		if key != "" {
			outbox.SetKey(msg, key)
		}
		msgs = append(msgs, msg)
	}
	return pub.Publish(topic, msgs...)
}

func (w world) publish(t testing.TB, topic, key string, payloads ...string) {
	t.Helper()
	w.handle.publish(t, topic, key, payloads...)
}

// idle waits until the forwarder has no work left.
func (w world) idle(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, w.Drain(ctx))
}

// awaitRenewals waits until all forwarders have renewed their leases twice.
func (h handle) awaitRenewals(t testing.TB) {
	t.Helper()
	for range 2 {
		expiry := value[time.Time](t, h, "select max(expires_at) from outbox_forwarders")
		eventually(t, func() bool {
			return value[time.Time](t, h, "select min(expires_at) from outbox_forwarders").After(expiry)
		}, "all forwarders renew their leases")
	}
}

// startForwarderOn is startForwarder with a broker that answers with answer.
func startForwarderOn(t testing.TB, h handle, cfg forwarder.Config, answer func(string, *message.Message) error) world {
	t.Helper()
	w := world{handle: h, fakeBroker: newFakeBroker(), log: newLogCapture(t)}
	w.answers(answer)
	w.Forwarder = w.join(t, h, cfg)
	return w
}

// statementCounter is a tracer that counts statements that contain a text.
type statementCounter struct {
	text  string
	first func(ctx context.Context) // called before the first one, if not nil
	n     atomic.Int64
}

func (c *statementCounter) on(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = c }

func (c *statementCounter) TraceQueryStart(
	ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData,
) context.Context {
	if strings.Contains(data.SQL, c.text) && c.n.Add(1) == 1 && c.first != nil {
		c.first(ctx)
	}
	return ctx
}

func (c *statementCounter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

const (
	unknown     = forwarder.Unknown
	retry       = forwarder.Retry
	unavailable = forwarder.Unavailable
	permanent   = forwarder.Permanent
)

// outagePatience is how long a publisher may take to notice that its broker is down or up again: sarama's circuit
// breaker alone takes ten seconds.
const outagePatience = 2 * time.Minute

func take(t testing.TB, in <-chan *message.Message, n int) []*message.Message {
	t.Helper()
	var all []*message.Message
	timeout := time.After(outagePatience)
	for len(all) < n {
		select {
		case msg := <-in:
			msg.Ack()
			all = append(all, msg)
		case <-timeout:
			t.Fatalf("%d of %d messages arrived", len(all), n)
		}
	}
	return all
}

// verdictOf returns an error's own verdict.
func verdictOf(err error) forwarder.Verdict {
	var judged *forwarder.PublishError
	if !errors.As(err, &judged) {
		return -1
	}
	return judged.Verdict
}

// load publishes from many goroutines, each message until it is acknowledged.
type load struct {
	t    testing.TB
	done chan struct{}
	wg   sync.WaitGroup

	mu       sync.Mutex
	acked    map[string]bool
	verdicts map[forwarder.Verdict]int
	errs     map[string]int
}

func startLoad(t testing.TB, pub message.Publisher, topic string, writers int, payload string) *load {
	l := &load{
		t: t, done: make(chan struct{}), acked: map[string]bool{}, verdicts: map[forwarder.Verdict]int{},
		errs: map[string]int{},
	}
	for range writers {
		l.wg.Go(func() {
			msg := newMessage(payload)
			for {
				err := pub.Publish(topic, msg)
				l.mu.Lock()
				if err != nil {
					verdict := verdictOf(err)
					l.verdicts[verdict]++
					if verdict != unavailable {
						l.errs[err.Error()]++
					}
				} else {
					l.acked[msg.UUID] = true
					msg = newMessage(payload)
				}
				l.mu.Unlock()

				pause := 5 * time.Millisecond
				if err != nil {
					pause = 100 * time.Millisecond // otherwise refusals take most of the time
				}
				select {
				case <-l.done:
					return
				case <-time.After(pause):
				}
			}
		})
	}
	t.Cleanup(l.stop)
	return l
}

func (l *load) wait(what string, reached func(*load) bool) {
	l.t.Helper()
	for deadline := time.Now().Add(outagePatience); ; time.Sleep(10 * time.Millisecond) {
		l.mu.Lock()
		ok := reached(l)
		l.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("no %s within %s", what, outagePatience)
		}
	}
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

func (l *load) stop() {
	select {
	case <-l.done:
	default:
		close(l.done)
	}
	l.wg.Wait()
}

// logCapture is a logger that records lines at info and above.
type logCapture struct {
	t  testing.TB
	mu *sync.Mutex

	lines *[]string
}

var _ watermill.LoggerAdapter = logCapture{}

func newLogCapture(t testing.TB) logCapture { return logCapture{t, &sync.Mutex{}, &[]string{}} }

func (l logCapture) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*l.lines = append(*l.lines, line)
}

func (l logCapture) Error(msg string, err error, _ watermill.LogFields) {
	l.add("error: " + msg + ": " + err.Error())
}
func (l logCapture) Info(msg string, _ watermill.LogFields)           { l.add("info: " + msg) }
func (l logCapture) Debug(string, watermill.LogFields)                {}
func (l logCapture) Trace(string, watermill.LogFields)                {}
func (l logCapture) With(watermill.LogFields) watermill.LoggerAdapter { return l }

// count returns the number of lines that contain a text.
func (l logCapture) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, line := range *l.lines {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func itoa(n int) string { return strconv.Itoa(n) }

// runForwarder runs a new forwarder until the test ends.
func runForwarder(
	t testing.TB, h handle, pub message.Publisher, cfg forwarder.Config, logger watermill.LoggerAdapter,
) *forwarder.Forwarder {
	t.Helper()
	f, err := forwarder.New(h.db, pub, cfg, logger)
	require.NoError(t, err)
	runInBackground(t, f)
	return f
}

// runInBackground runs a forwarder until the test ends and waits until it owns lanes.
func runInBackground(t testing.TB, f *forwarder.Forwarder) {
	t.Helper()
	runUntilTheEnd(t, f, f.Running(), f.Close)
}

// newMessage returns a message with a fresh UUID.
func newMessage(payload string) *message.Message {
	return message.NewMessage(watermill.NewUUID(), message.Payload(payload))
}
