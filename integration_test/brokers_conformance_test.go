package integration_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/amqp"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
	"github.com/millrace-go/watermill-outbox/kafka"
	"github.com/millrace-go/watermill-outbox/nats"
	"github.com/millrace-go/watermill-outbox/outboxtest"
	"github.com/millrace-go/watermill-outbox/redis"
)

// opener opens a publisher for the server at an address.
type opener func(address string) (message.Publisher, error)

// conformant is a publisher that make conformance tests.
type conformant struct {
	name  string
	start func(*testing.T) (address string, b outboxtest.Broker) // starts a server for one test
	open  opener
}

func (c conformant) test(t *testing.T, kills int) {
	address, b := c.start(t)
	if b.Kills = kills; kills == 0 { // kills take long; each test of the suite also freezes the server
		b.Kill, b.Restart, b.Kills = nil, nil, 1
	}
	outboxtest.TestPublisher(t, func() (message.Publisher, error) { return c.open(address) }, b)
}

var conformants = []conformant{
	{"kafka", kafkaConformance, func(address string) (message.Publisher, error) {
		return kafka.NewPublisher(kafka.PublisherConfig{Brokers: []string{address}}, nil)
	}},
	{"nats", natsConformance, func(address string) (message.Publisher, error) {
		return nats.NewPublisher(nats.PublisherConfig{URL: address}, nil)
	}},
	{"amqp", rabbitConformance, func(address string) (message.Publisher, error) {
		return amqpPublisher(address)
	}},
	{"watermill-kafka", kafkaConformance, func(address string) (message.Publisher, error) {
		byKey := wmkafka.NewWithPartitioningMarshaler(func(_ string, msg *message.Message) (string, error) {
			return msg.Metadata.Get(outbox.MetadataKey), nil
		})
		pub, err := wmkafka.NewPublisher(wmkafka.PublisherConfig{Brokers: []string{address}, Marshaler: byKey}, nil)
		return orNil(pub, err, kafka.Classify)
	}},
	{"watermill-nats", natsConformance, func(address string) (message.Publisher, error) {
		pub, err := wmnats.NewPublisher(wmnats.PublisherConfig{URL: address}, watermill.NopLogger{})
		return orNil(pub, err, nats.Classify)
	}},
	{"watermill-amqp", rabbitConformance, func(address string) (message.Publisher, error) {
		pub, err := wmamqp.NewPublisher(wmamqp.NewDurableQueueConfig(address), watermill.NopLogger{})
		return orNil(pub, err, amqp.Classify)
	}},
	{"watermill-redisstream, appendfsync always", redisConformance("appendonly yes", "appendfsync always"),
		redisPublisher},
	{"watermill-redisstream, appendfsync everysec", redisConformance("appendonly yes", "appendfsync everysec"),
		redisPublisher},
	{"watermill-redisstream, snapshots", redisConformance(), redisPublisher},
}

// orNil returns nil instead of a typed nil pointer, and adds verdicts to watermill's publishers.
func orNil[P message.Publisher](pub P, err error, classify func(error) forwarder.Verdict) (message.Publisher, error) {
	if err != nil {
		return nil, err
	}
	return forwarder.WithVerdicts(pub, classify), nil
}

func redisPublisher(address string) (message.Publisher, error) {
	pub, err := redisstream.NewPublisher(redisstream.PublisherConfig{
		Client: goredis.NewClient(&goredis.Options{Addr: address}),
	}, nil)
	return orNil(pub, err, redis.Classify)
}

// largest is the message size that topics accept. It is above what the suite sends and below what clients refuse, so
// that the server refuses a poison message.
const largest = 1<<20 - 2500

func tooLarge() *message.Message { return newMessage(string(make([]byte, 1<<20-1200))) }

// TestKafkaPublisher uses the shared server, so it leaves out tests that freeze it or need topic auto-creation off.
func TestKafkaPublisher(t *testing.T) {
	t.Parallel()
	server := kafkaServer(t)
	b := kafkaBroker(server)
	b.Kills = 1
	outboxtest.TestPublisher(t, func() (message.Publisher, error) { return conformants[0].open(server.Brokers()[0]) }, b)
}

func TestNATSPublisher(t *testing.T) { t.Parallel(); conformants[1].test(t, 0) }

// These run the whole suite and kill each server once under load, or ten times if OUTBOX_LONG is set; make conformance
// takes the number as an argument. They are tests of their own because package testing starts the parallel subtests of
// all tests last.

func TestKafkaUnderKills(t *testing.T) {
	extended(t)
	t.Parallel()
	conformants[0].test(t, rounds(1, 10))
}

func TestNATSUnderKills(t *testing.T) {
	extended(t)
	t.Parallel()
	conformants[1].test(t, rounds(1, 10))
}

func TestRabbitMQUnderKills(t *testing.T) {
	extended(t)
	t.Parallel()
	conformants[2].test(t, rounds(1, 10))
}

// TestRedisUnderKills: the publisher of watermill-redisstream must not be closed while others publish, since it reads a
// bool without a lock.
func TestRedisUnderKills(t *testing.T) {
	extended(t)
	t.Parallel()
	c := conformants[6]
	c.open = func(address string) (message.Publisher, error) {
		pub, err := redisPublisher(address)
		if err != nil {
			return nil, err
		}
		return &closedAlone{pub: pub}, nil
	}
	c.test(t, rounds(1, 10))
}

func kafkaConformance(t *testing.T) (string, outboxtest.Broker) {
	server, err := services.StartKafka(t.Context(), services.Options{
		QuickStart: true, KafkaSettings: []string{"auto.create.topics.enable=false"},
	})
	needsKafka(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	b := kafkaBroker(server)
	b.Kill, b.Restart = server.Kill, func() error { return server.Restart(context.Background()) }
	b.Freeze, b.Thaw, b.Missing = server.Freeze, server.Thaw, "nowhere"
	return server.Brokers()[0], b
}

func kafkaBroker(server *services.Kafka) outboxtest.Broker {
	limit := strconv.Itoa(largest)
	return outboxtest.Broker{
		NewTopic: func(t testing.TB) string {
			return kafkaTopic(t, server, 4, map[string]*string{"max.message.bytes": &limit})
		},
		Stored: func(t testing.TB, topic string) (stored []*message.Message) {
			for record := range kafkaRecords(t, server, topic) {
				msg, err := kafka.Unmarshaler{}.Unmarshal(record)
				require.NoError(t, err)
				stored = append(stored, msg)
			}
			return stored
		},
		Poison: tooLarge, KeepsNull: true,
	}
}

func natsConformance(t *testing.T) (string, outboxtest.Broker) {
	server, err := services.StartNATSProcess(t.Context(), services.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	streams := map[string]string{} // by topic
	return server.URL(), outboxtest.Broker{
		NewTopic: func(t testing.TB) string {
			_, stream, prefix := natsStream(t, server.URL(), func(c *natsgo.StreamConfig) { c.MaxMsgSize = largest })
			streams[prefix+"a"] = stream
			return prefix + "a"
		},
		Stored: func(t testing.TB, topic string) (stored []*message.Message) {
			conn, err := natsgo.Connect(server.URL(), natsgo.Timeout(patience))
			require.NoError(t, err)
			defer conn.Close()
			js, err := conn.JetStream(natsgo.MaxWait(patience))
			require.NoError(t, err)
			sub, err := js.SubscribeSync(topic, natsgo.OrderedConsumer(), natsgo.BindStream(streams[topic]))
			require.NoError(t, err)
			for range natsStored(t, js, streams[topic]) {
				got, err := sub.NextMsg(patience)
				require.NoError(t, err)
				msg, err := nats.Unmarshaler{}.Unmarshal(got)
				require.NoError(t, err)
				stored = append(stored, msg)
			}
			return stored
		},
		Kill: server.Kill, Restart: func() error { return server.Restart(context.Background()) },
		Freeze: server.Freeze, Thaw: server.Thaw,
		Missing: "nowhere", Poison: tooLarge,
	}
}

func rabbitConformance(t *testing.T) (string, outboxtest.Broker) {
	server := rabbitMQ(t)
	// Erlang delays writes for up to two seconds. If RabbitMQ is killed in that time after its start or after a
	// declaration, it forgets queues with the messages that it has confirmed.
	var changed time.Time
	return server.URL(), outboxtest.Broker{
		NewTopic: func(t testing.TB) string {
			queue := amqpQueue(t, server.URL(), nil)
			changed = time.Now()
			return queue
		},
		Stored: func(t testing.TB, topic string) []*message.Message {
			return amqpStored(t, server.URL(), topic)
		},
		Kill: func() error {
			time.Sleep(time.Until(changed.Add(3 * time.Second)))
			return server.Kill()
		},
		Restart: func() error {
			defer func() { changed = time.Now() }()
			return server.Restart(context.Background())
		},
		Freeze: server.Freeze, Thaw: server.Thaw,
		Missing: "nowhere",
		Poison: func() *message.Message {
			msg := newMessage("")
			msg.Metadata.Set(string(make([]byte, 300)), "no AMQP header has such a long name")
			return msg
		},
	}
}

// redisConformance has no Missing: Redis creates a stream of any name.
func redisConformance(settings ...string) func(*testing.T) (string, outboxtest.Broker) {
	return func(t *testing.T) (string, outboxtest.Broker) {
		server, err := services.StartRedis(t.Context(), services.Options{}, settings...)
		if errors.Is(err, services.ErrNotInstalled) && !services.InCI() {
			t.Skip("Redis is not installed")
		}
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, server.Close()) })
		return server.Address(), outboxtest.Broker{
			NewTopic: func(testing.TB) string { return "s-" + watermill.NewShortUUID() },
			Stored: func(t testing.TB, topic string) (stored []*message.Message) {
				client := goredis.NewClient(&goredis.Options{Addr: server.Address(), ReadTimeout: patience})
				defer client.Close()
				for next := "-"; ; {
					entries, err := client.XRangeN(t.Context(), topic, next, "+", 1000).Result()
					require.NoError(t, err)
					for _, entry := range entries {
						msg, err := redisstream.DefaultMarshallerUnmarshaller{}.Unmarshal(entry.Values)
						require.NoError(t, err)
						stored = append(stored, msg)
						next = "(" + entry.ID
					}
					if len(entries) == 0 {
						return stored
					}
				}
			},
			Kill: server.Kill, Restart: func() error { return server.Restart(context.Background()) },
			Freeze: server.Freeze, Thaw: server.Thaw,
			Poison: func() *message.Message {
				msg := newMessage("")
				msg.Metadata.Set(redisstream.UUIDHeaderKey, "a name that its marshaler refuses")
				return msg
			},
		}
	}
}

// closedAlone lets Close wait for calls of Publish.
type closedAlone struct {
	mu  sync.RWMutex
	pub message.Publisher
}

func (c *closedAlone) Publish(topic string, msgs ...*message.Message) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.pub.Publish(topic, msgs...)
}

func (c *closedAlone) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pub.Close()
}

const (
	conformanceArgs  = "OUTBOX_CONFORMANCE"    // of make conformance
	conformanceChild = "OUTBOX_CONFORMANCE_OF" // the publisher to test, in a child process since it may hang or crash
	conformancePage  = "publishers.md"
)

// TestPublishersConform runs outboxtest.TestPublisher on each publisher and prints the results (make conformance).
func TestPublishersConform(t *testing.T) {
	if name := os.Getenv(conformanceChild); name != "" {
		for _, c := range conformants {
			if c.name == name {
				kills, err := strconv.Atoi(os.Getenv(conformanceArgs))
				require.NoError(t, err)
				c.test(t, kills)
			}
		}
		return
	}
	args, given := os.LookupEnv(conformanceArgs)
	if !given {
		t.Skip("run by make conformance")
	}
	flags := flag.NewFlagSet("make conformance ARGS=", flag.ContinueOnError)
	kills := flags.Int("kills", 10, "how often each server is killed under load")
	only := flags.String("only", "", "regular expression for the names of publishers")
	points := flags.String("points", "", "regular expression for the names of points")
	write := flags.Bool("write", false, "replace the rows in integration_test/publishers.md")
	require.NoError(t, flags.Parse(strings.Fields(args)))
	pattern, err := regexp.Compile(*only)
	require.NoError(t, err)
	var rows []string
	for _, c := range conformants {
		if pattern.MatchString(c.name) {
			rows = append(rows, conformanceRow(t, c.name, *kills, *points))
		}
	}
	require.NotEmpty(t, rows, "-only %q names no publisher", *only)
	fmt.Println("\n" + conformanceHeader() + strings.Join(rows, ""))
	if *write {
		writeRows(t, rows)
	}
}

func conformanceHeader() string {
	header, line := "| publisher | kills | acknowledged | missing |", "|---|---|---|---|"
	for i := range conformancePoints() {
		header += fmt.Sprintf(" %d |", i+1)
		line += "---|"
	}
	return header + "\n" + line + "\n"
}

var (
	endOfPoint = regexp.MustCompile(`--- (PASS|FAIL|SKIP): TestPublishersConform/(\S+) `)
	counted    = regexp.MustCompile(`(\d+) acknowledged, (\d+) missing, (\d+) kills`)
)

// conformanceRow runs the suite in a child process.
func conformanceRow(t *testing.T, name string, kills int, points string) string {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, "-test.v", "-test.timeout=0", "-test.run=^TestPublishersConform$/"+points)
	cmd.Env = append(os.Environ(), conformanceChild+"="+name, conformanceArgs+"="+strconv.Itoa(kills))
	out, to := io.Pipe()
	cmd.Stdout, cmd.Stderr = to, to
	require.NoError(t, cmd.Start())
	go func() { _ = to.CloseWithError(cmd.Wait()) }() // the child fails if a test of the suite does
	results, counts := map[string]string{}, []string{"", "-", "-", "-"}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		fmt.Println(time.Now().Format(time.TimeOnly), name+":", lines.Text())
		if end := endOfPoint.FindStringSubmatch(lines.Text()); end != nil {
			results[end[2]] = map[string]string{"PASS": "yes", "FAIL": "**no**", "SKIP": "-"}[end[1]]
		}
		if found := counted.FindStringSubmatch(lines.Text()); found != nil {
			counts = found
		}
	}
	row := fmt.Sprintf("| %s | %s | %s | %s |", name, counts[3], thousands(counts[1]), thousands(counts[2]))
	for _, point := range conformancePoints() {
		result := results[strings.ReplaceAll(point, " ", "_")]
		if result == "" {
			result = "-"
		}
		row += " " + result + " |"
	}
	return row + "\n"
}

// conformancePoints returns the names of the suite's tests.
func conformancePoints() (names []string) {
	suite, err := os.ReadFile("../outboxtest/conformance.go")
	if err != nil {
		panic(err)
	}
	for _, point := range regexp.MustCompile(`(?m)^\t\t\{"([^"]+)", .*, c\.`).FindAllStringSubmatch(string(suite), -1) {
		names = append(names, point[1])
	}
	return names
}

func thousands(digits string) string {
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

func writeRows(t *testing.T, rows []string) {
	t.Helper()
	page, err := os.ReadFile(conformancePage)
	require.NoError(t, err)
	text := string(page)
	for _, row := range rows {
		name, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " |")
		old := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(name) + ` \|.*\n`).FindString(text)
		require.NotEmpty(t, old, "%s has no row for %s", conformancePage, name)
		text = strings.Replace(text, old, row, 1)
	}
	require.NoError(t, os.WriteFile(conformancePage, []byte(text), 0o644))
}

// TestConformanceIsDocumented: the page lists the tests of the suite and has a row for each publisher.
func TestConformanceIsDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(conformancePage)
	require.NoError(t, err)
	points := conformancePoints()
	require.Len(t, points, 11)
	for i, point := range points {
		assert.Contains(t, string(page), fmt.Sprintf("\n%d. **%s**", i+1, point))
	}
	assert.Contains(t, string(page), "\n"+conformanceHeader())
	for _, c := range conformants {
		assert.Contains(t, string(page), "\n| "+c.name+" |")
	}
}
