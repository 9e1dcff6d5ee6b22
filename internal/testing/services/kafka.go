package services

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/IBM/sarama"
)

// Kafka is a Kafka broker that creates topics with four partitions when they are first used. Its methods are safe for
// concurrent use.
type Kafka struct{ *daemon }

// StartKafka starts a broker: a single node on the machine's Java 17 or later with jars resolved by Maven once into the
// user's cache folder. It returns an error that wraps [ErrNotInstalled] without a usable Java or Maven.
func StartKafka(ctx context.Context, opts Options) (*Kafka, error) {
	java, jars, err := kafkaOnJava(ctx, opts)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("start kafka: %w", ctx.Err())
	}
	if err != nil {
		return nil, fmt.Errorf("start kafka: %w", err)
	}
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
	opts.say("kafka %s on %s on %s", kafkaVersion, java, address(d.port))
	return &Kafka{d}, nil
}

// Brokers returns the addresses of the brokers as host:port. They stay the same across Restart.
func (k *Kafka) Brokers() []string { return []string{address(k.port)} }

// kafkaRequestTimeout is short because a context cannot end a request, and a request that timed out is repeated.
const kafkaRequestTimeout = 5 * time.Second

// kafkaReady fails until the broker at this address is a registered member of the cluster and gives producer IDs, which
// idempotent producers need and which takes a moment longer.
func kafkaReady(address, cluster string) error {
	config := sarama.NewConfig()
	config.Net.DialTimeout = time.Second
	config.Net.ReadTimeout, config.Net.WriteTimeout = kafkaRequestTimeout, kafkaRequestTimeout
	broker := sarama.NewBroker(address)
	if err := broker.Open(config); err != nil {
		return err
	}
	defer broker.Close()
	metadata, err := broker.GetMetadata(sarama.NewMetadataRequest(config.Version, nil))
	switch {
	case err != nil:
		return err
	case metadata.ClusterID == nil || *metadata.ClusterID != cluster:
		return errors.New("another broker has this port")
	case !slices.ContainsFunc(metadata.Brokers, func(b *sarama.Broker) bool { return b.Addr() == address }):
		return errors.New("it is not registered yet")
	}
	producer, err := broker.InitProducerID(&sarama.InitProducerIDRequest{Version: 4, ProducerID: -1, ProducerEpoch: -1})
	if err == nil && producer.Err != sarama.ErrNoError {
		err = producer.Err
	}
	return err
}
