package integration_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/jackc/pgx/v5/pgxpool"
	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
	"github.com/millrace-go/watermill-outbox/nats"
)

// suiteChild makes a process run one of Watermill's suites itself, with the broker at this address, if not suiteAlone.
const (
	suiteChild = "OUTBOX_PUBSUB_SUITE"
	suiteAlone = "alone"
)

// runSuite runs the calling test again in a child process, which runs Watermill's suite, because only its output shows
// which tests of the suite were skipped. It returns true in the child. These tests do not run in parallel with others:
// the suite has its own time limits, which fail under load.
func runSuite(t *testing.T, wantSkipped ...string) bool {
	return runSuiteOn(t, suiteAlone, wantSkipped...)
}

// runSuiteOn is runSuite with the address of a broker, which the child finds in suiteChild. A broker that the child
// started would take long and count as a leak.
func runSuiteOn(t *testing.T, broker string, wantSkipped ...string) bool {
	if os.Getenv(suiteChild) != "" {
		return true
	}
	args := []string{"-test.run=^" + t.Name() + "$", "-test.v", "-test.count=1", "-test.timeout=5m", "-test.parallel=8"}
	if os.Getenv("OUTBOX_LONG") == "" {
		args = append(args, "-test.short")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), suiteChild+"="+broker)
	// The exit code also covers goroutines that the suite itself leaks; suiteLeaks checks ours.
	output, err := cmd.CombinedOutput()
	if !bytes.Contains(output, []byte("\n--- PASS: "+t.Name()+" (")) {
		t.Errorf("the suite failed: %v\n%s", err, output)
	}
	ended := regexp.MustCompile(`(?m)^\s*--- (PASS|FAIL|SKIP): ` + t.Name() + `/(\w+) \(`)
	var passed, skipped []string
	for _, m := range ended.FindAllSubmatch(output, -1) {
		// The skipping test is one level deeper, under a random name.
		inner := regexp.MustCompile(`--- SKIP: ` + t.Name() + `/` + string(m[2]) + `/`)
		if inner.Match(output) {
			skipped = append(skipped, string(m[2]))
		} else if bytes.Equal(m[1], []byte("PASS")) {
			passed = append(passed, string(m[2]))
		}
	}
	slices.Sort(skipped)
	assert.Equal(t, wantSkipped, skipped, "skipped")
	assert.Len(t, passed, 16-len(wantSkipped), "%v\n%s", passed, output)
	return false
}

// suiteLeaks is brokerSuiteLeaks for a suite on Postgres. It starts the server first, whose goroutines outlive the test.
func suiteLeaks(t *testing.T) {
	postgresServer(t)
	brokerSuiteLeaks(t)
}

// brokerSuiteLeaks is suiteLeaks for a test without Postgres.
func brokerSuiteLeaks(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	multiplier := "github.com/ThreeDotsLabs/watermill/internal/subscriber.(*multiplier).Subscribe.func"
	t.Cleanup(func() {
		assert.NoError(t, goleak.Find(ignore, goleak.IgnoreAnyFunction(multiplier+"2"),
			goleak.IgnoreAnyFunction(multiplier+"3")))
	})
}

// closing is a publisher for tests: unlike ours, which handlers share, it refuses messages after Close.
type closing struct {
	message.Publisher
	closed atomic.Bool
}

func (c *closing) Publish(topic string, msgs ...*message.Message) error {
	if c.closed.Load() {
		return errors.New("closed")
	}
	return c.Publisher.Publish(topic, msgs...)
}

func (c *closing) Close() error {
	c.closed.Store(true)
	return c.Publisher.Close()
}

// newSuiteHandle opens a handle for a whole suite, whose tests run in parallel.
func newSuiteHandle(t *testing.T) handle {
	return pgxHandle(t, "suite", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.MaxConns = 40 })
}

func newSuitePublisher(t *testing.T, h handle) message.Publisher {
	pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{
		WithoutTx: outbox.OwnTx,
		Key:       func(string, *message.Message) (string, error) { return "one", nil },
	}, nil)
	require.NoError(t, err)
	return &closing{Publisher: pub}
}

// TestPubSubOfSubscriber runs Watermill's suite on our Publisher and our Subscriber.
func TestPubSubOfSubscriber(t *testing.T) {
	extended(t)
	if !runSuite(t, "TestConsumerGroups", "TestNewSubscriberReceivesOldMessages", "TestReconnect") {
		return
	}
	suiteLeaks(t)
	h := newSuiteHandle(t)
	construct := func(t *testing.T) (message.Publisher, message.Subscriber) {
		sub, err := forwarder.NewSubscriber(h.db, subscribing(quickConfig()), watermill.NewStdLogger(false, false))
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, sub.Close()) }) // the suite does not close all of them
		return newSuitePublisher(t, h), sub
	}
	tests.TestPubSub(t, tests.Features{
		Persistent: true, GuaranteedOrder: true,
	}, construct, nil)
}

// TestPubSubOfForwarder runs Watermill's suite on our Publisher, our Forwarder and watermill-nats's subscriber.
func TestPubSubOfForwarder(t *testing.T) {
	extended(t)
	if !runSuite(t, "TestReconnect") {
		return
	}
	suiteLeaks(t)
	server, err := services.StartNATS(t.Context(), services.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, server.Close()) })
	toNATS, err := nats.NewPublisher(nats.PublisherConfig{URL: server.URL()}, watermill.NewStdLogger(false, false))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, toNATS.Close()) })

	h := newSuiteHandle(t)
	f := runForwarder(t, h, toNATS, quickConfig(), watermill.NewStdLogger(false, false))

	construct := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		sub, err := wmnats.NewSubscriber(wmnats.SubscriberConfig{
			URL: server.URL(), QueueGroupPrefix: group, Unmarshaler: &wmnats.NATSMarshaler{},
			CloseTimeout: 10 * time.Second,
			JetStream: wmnats.JetStreamConfig{
				DurablePrefix: group, AckAsync: true,
				SubscribeOptions: []natsgo.SubOpt{natsgo.DeliverAll(), natsgo.AckExplicit()},
			},
		}, watermill.NewStdLogger(false, false))
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, sub.Close()) })
		return newSuitePublisher(t, h), sub
	}
	tests.TestPubSub(t, tests.Features{
		Persistent: true, GuaranteedOrder: true, GuaranteedOrderWithSingleSubscriber: true,
		ConsumerGroups: true, NewSubscriberReceivesOldMessages: true,
	}, func(t *testing.T) (message.Publisher, message.Subscriber) { return construct(t, "") }, construct)

	drain, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, f.Drain(drain))
}

func TestSubscribersOfATopicShareIt(t *testing.T) {
	h := onPgx(t)
	s := newSubscriber(t, h, sharing(quickConfig()))
	var mu sync.Mutex
	var order = map[string][]string{}
	count, total := make([]int, 3), 0
	all := make(chan struct{})
	var readers sync.WaitGroup
	for i := range count {
		messages, err := s.Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		readers.Go(func() {
			for msg := range messages {
				mu.Lock()
				key := msg.Metadata[outbox.MetadataKey]
				order[key] = append(order[key], string(msg.Payload))
				count[i]++
				if total++; total == 600 {
					close(all)
				}
				mu.Unlock()
				msg.Ack()
			}
		})
	}
	h.reaches(t, 3, "each has lanes", "select count(distinct owner) from outbox_lanes where owner is not null")
	for i := range 60 {
		h.publish(t, "orders", "key-"+itoa(i), numbered("", 1, 10)...)
	}
	within(t, "all messages arrive", all)
	require.NoError(t, s.Close())
	readers.Wait()
	for key, got := range order {
		assert.Equal(t, numbered("", 1, 10), got, key)
	}
	assert.Equal(t, 600, total)
	for i, n := range count {
		assert.NotZero(t, n, "subscriber %d", i)
	}
	assert.Zero(t, h.count(t, "select count(*) from outbox where published_at is null"))
}
