package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Kafka is a Kafka broker that creates topics with four partitions when they are first used. Its methods are safe for
// concurrent use. Stop, Kill and Restart work on a real broker.
type Kafka struct {
	*daemon
	brokers []string
	fake    *fakeKafka
}

// StartKafka starts a broker: a single node on the machine's Java 17 or later with jars resolved by Maven once into the
// user's cache folder, otherwise, unless CI is true, a fake in this process.
func StartKafka(ctx context.Context, opts Options) (*Kafka, error) {
	java, jars, err := kafkaOnJava(ctx, opts)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("start kafka: %w", ctx.Err())
	}
	if err != nil && InCI() {
		return nil, fmt.Errorf("start kafka (install Java 17 and Maven): %w", err)
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

func startRealKafka(ctx context.Context, java, jars string, opts Options) (*Kafka, error) {
	args := []string{"-Xmx512m"}
	if opts.QuickStart {
		args = append(args, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
	}
	n := &kafkaNode{
		java: java, jars: jars, args: args, further: opts.KafkaSettings, cluster: newClusterID(), id: 1,
		controllers: make([]int, 1),
	}
	d, err := n.daemon("kafka", opts)
	if err != nil {
		return nil, fmt.Errorf("start kafka: %w", err)
	}
	if err := d.launch(ctx); err != nil {
		return nil, err
	}
	k := &Kafka{daemon: d, brokers: []string{address(d.port)}}
	opts.say("kafka %s on %s on %s", kafkaVersion, java, k.brokers[0])
	return k, nil
}

// Brokers returns the addresses of the brokers as host:port. They stay the same across Restart.
func (k *Kafka) Brokers() []string { return append([]string(nil), k.brokers...) }

// Fake reports whether this is the in-memory fake, which loses everything with its process and shows nothing about the
// speed or the failures of a real broker.
func (k *Kafka) Fake() bool { return k.fake != nil }

// Close ends the broker for good and removes its data. Later calls do nothing.
func (k *Kafka) Close() error {
	if k.fake != nil {
		return k.fake.Close()
	}
	return k.daemon.Close()
}

// clusterID returns the cluster's id and fails unless a broker is registered as alive.
func clusterID(ctx context.Context, brokers []string) (string, error) {
	id, _, err := clusterOf(ctx, brokers)
	return id, err
}

// clusterOf returns the cluster's id and the addresses of brokers registered as alive, and fails if there are none.
func clusterOf(ctx context.Context, brokers []string) (id string, alive []string, err error) {
	request := kmsg.NewPtrMetadataRequest()
	request.Topics = []kmsg.MetadataRequestTopic{} // nil would request all topics
	response, err := ask(ctx, brokers, request)
	if err != nil {
		return "", nil, err
	}
	metadata := response.(*kmsg.MetadataResponse)
	if len(metadata.Brokers) == 0 || metadata.ClusterID == nil {
		return "", nil, errors.New("no broker is registered yet")
	}
	for _, b := range metadata.Brokers {
		alive = append(alive, net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port))))
	}
	return *metadata.ClusterID, alive, nil
}

// givesProducerIDs fails while an idempotent producer cannot start, as for a moment after the brokers are registered.
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

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
