package services

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// outsideTimeout is for a broker that should be there already.
const outsideTimeout = time.Minute

// Kafka is a Kafka broker that makes topics of four partitions when they are first used. Its methods are safe for
// concurrent use. Stop, Kill and Restart work on a real broker started here.
type Kafka struct {
	*daemon
	brokers []string
	fake    *fakeKafka
	isFake  bool
}

// StartKafka returns the broker at OUTBOX_KAFKA_BROKERS, or starts one: a single node on the machine's Java 17 or later
// with jars resolved by Maven once into the user's cache folder, else, unless CI is true, a fake in this process. An
// outside broker must answer without TLS or a password.
func StartKafka(ctx context.Context, opts Options) (*Kafka, error) {
	if external := os.Getenv("OUTBOX_KAFKA_BROKERS"); external != "" {
		return outsideKafka(ctx, strings.Split(external, ","), opts)
	}
	java, jars, err := kafkaOnJava(ctx, opts)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("start kafka: %w", ctx.Err())
	}
	if err != nil && InCI() {
		return nil, fmt.Errorf("start kafka (set OUTBOX_KAFKA_BROKERS or install Java 17 and Maven): %w", err)
	}
	if err != nil {
		k, fakeErr := startFakeKafka()
		if fakeErr != nil {
			return nil, fmt.Errorf("start fake kafka: %w", fakeErr)
		}
		opts.say("FAKE kafka in this process on %s, no real one: %s", k.brokers[0], firstLine(err))
		return k, nil
	}
	return startRealKafka(ctx, java, jars, opts)
}

func outsideKafka(ctx context.Context, brokers []string, opts Options) (*Kafka, error) {
	for i := range brokers {
		brokers[i] = strings.TrimSpace(brokers[i])
	}
	ctx, cancel := context.WithTimeout(ctx, outsideTimeout)
	defer cancel()
	id, err := clusterID(ctx, brokers)
	if err != nil {
		return nil, fmt.Errorf("kafka at OUTBOX_KAFKA_BROKERS: %w", err)
	}
	k := &Kafka{brokers: brokers, isFake: id == fakeClusterID}
	if k.isFake && InCI() {
		return nil, errors.New("kafka at OUTBOX_KAFKA_BROKERS: it is a fake, and CI wants a real one")
	}
	if k.isFake {
		opts.say("FAKE kafka from OUTBOX_KAFKA_BROKERS")
	} else {
		opts.say("kafka from OUTBOX_KAFKA_BROKERS")
	}
	return k, nil
}

func startRealKafka(ctx context.Context, java, jars string, opts Options) (*Kafka, error) {
	f, err := newFolder(nil)
	if err != nil {
		return nil, fmt.Errorf("start kafka: %w", err)
	}
	id := newClusterID()
	properties := filepath.Join(f.path, "server.properties")
	logging := filepath.Join(f.path, "log4j2.properties")
	classes := filepath.Join(jars, "*")
	var controllerPort int
	k := &Kafka{}
	k.daemon = &daemon{
		name: "kafka", folder: f, opts: opts,
		stop:    syscall.SIGTERM,
		discard: syscall.SIGKILL,
		prepare: func(ctx context.Context) error {
			// Formatting writes down the id and the version of the storage, but no ports.
			if err := os.WriteFile(properties, kafkaProperties(f.path, 1, 2), 0o644); err != nil {
				return err
			}
			if err := os.WriteFile(logging, []byte(kafkaLogging), 0o644); err != nil {
				return err
			}
			cmd := exec.Command(java, "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", classes,
				"kafka.tools.StorageTool", "format", "-t", id, "-c", properties)
			k.inFolder(cmd)
			if err := runCommand(ctx, cmd); err != nil {
				return fmt.Errorf("format storage: %w", err)
			}
			return nil
		},
		command: func(port int) (*exec.Cmd, error) {
			broker := address(port)
			if k.brokers == nil || k.brokers[0] != broker {
				var err error
				if controllerPort, err = freePort(); err != nil {
					return nil, err
				}
				k.brokers = []string{broker}
				if err := os.WriteFile(properties, kafkaProperties(f.path, port, controllerPort), 0o644); err != nil {
					return nil, err
				}
			}
			args := []string{"-Xmx512m", "-Dlog4j2.configurationFile=" + logging, "-cp", classes}
			if opts.QuickStart {
				args = append(args, "-XX:TieredStopAtLevel=1")
			}
			return exec.Command(java, append(args, "kafka.Kafka", properties)...), nil
		},
		ready: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, readyTimeout)
			defer cancel()
			got, err := clusterID(ctx, k.brokers)
			if err != nil {
				return err
			}
			if got != id {
				return errors.New("another broker has this port")
			}
			return givesProducerIDs(ctx, k.brokers)
		},
	}
	if err := k.launch(ctx); err != nil {
		return nil, err
	}
	opts.say("kafka %s on %s on %s", kafkaVersion, java, k.brokers[0])
	return k, nil
}

// Brokers returns the addresses of the brokers as host:port. They stay the same across Restart.
func (k *Kafka) Brokers() []string { return append([]string(nil), k.brokers...) }

// Fake reports whether this is the in-memory fake, which loses everything with its process and says nothing about the
// speed or the failures of a real broker.
func (k *Kafka) Fake() bool { return k.isFake }

// Close ends a broker that was started here for good and removes its data. Later calls do nothing.
func (k *Kafka) Close() error {
	if k.fake != nil {
		return k.fake.Close()
	}
	return k.daemon.Close()
}

// clusterID asks for the cluster's id and fails unless a broker is registered as alive.
func clusterID(ctx context.Context, brokers []string) (string, error) {
	request := kmsg.NewPtrMetadataRequest()
	request.Topics = []kmsg.MetadataRequestTopic{} // nil would ask for all topics
	response, err := ask(ctx, brokers, request)
	if err != nil {
		return "", err
	}
	metadata := response.(*kmsg.MetadataResponse)
	if len(metadata.Brokers) == 0 || metadata.ClusterID == nil {
		return "", errors.New("no broker is registered yet")
	}
	return *metadata.ClusterID, nil
}

// givesProducerIDs fails while an idempotent producer cannot begin, as for a moment after the brokers are registered.
func givesProducerIDs(ctx context.Context, brokers []string) error {
	response, err := ask(ctx, brokers, kmsg.NewPtrInitProducerIDRequest())
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(response.(*kmsg.InitProducerIDResponse).ErrorCode)
}

func ask(ctx context.Context, brokers []string, request kmsg.Request) (kmsg.Response, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RequestRetries(0), kgo.DialTimeout(time.Second))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return client.Request(ctx, request)
}

// newClusterID returns an id as Kafka writes them. One that begins with a dash reads as an option on a command line.
func newClusterID() string {
	for {
		var id [16]byte
		_, _ = rand.Read(id[:])
		if s := base64.RawURLEncoding.EncodeToString(id[:]); s[0] != '-' {
			return s
		}
	}
}

// kafkaLogging makes the broker say what it does: by default it logs errors alone.
const kafkaLogging = `rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS} %p %m%n
`

// kafkaProperties are the production defaults except for what a single node needs, and for short broker sessions:
// with the default a killed broker waits nine seconds for its own old session to expire.
func kafkaProperties(dir string, port, controllerPort int) []byte {
	return fmt.Appendf(nil, `process.roles=broker,controller
node.id=1
controller.quorum.voters=1@%[2]s
listeners=PLAINTEXT://%[1]s,CONTROLLER://%[2]s
advertised.listeners=PLAINTEXT://%[1]s
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs=%[3]s
num.partitions=4
auto.create.topics.enable=true
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
`, address(port), address(controllerPort), filepath.ToSlash(filepath.Join(dir, "data")))
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
