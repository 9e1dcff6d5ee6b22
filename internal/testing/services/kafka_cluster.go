package services

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// KafkaCluster is a cluster of three Kafka nodes, "1", "2" and "3", each a broker and a controller. Topics have three
// replicas, of which two must be in sync.
type KafkaCluster struct{ cluster }

// StartKafkaCluster starts a cluster, and returns when all brokers are registered. It returns an error that wraps
// [ErrNotInstalled] without a usable Java or Maven.
func StartKafkaCluster(ctx context.Context, opts Options) (*KafkaCluster, error) {
	java, jars, err := kafkaOnJava(ctx, opts)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("start kafka cluster: %w", ctx.Err())
	}
	if err != nil {
		return nil, fmt.Errorf("start kafka cluster: %w", err)
	}
	k := &KafkaCluster{}
	if err = k.add(java, jars, opts); err == nil {
		err = k.launch(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start kafka cluster: %w", err), k.Close())
	}
	opts.say("three nodes of kafka %s on %s on %s", kafkaVersion, java, strings.Join(k.Brokers(), ","))
	return k, nil
}

func (k *KafkaCluster) add(java, jars string, opts Options) error {
	controllers, id := make([]int, clusterNodes), newClusterID()
	for i := range controllers {
		var err error
		if controllers[i], err = freePort(); err != nil {
			return err
		}
	}
	for i, controller := range controllers {
		replication, err := freePort()
		if err != nil {
			return err
		}
		n := &kafkaNode{
			java: java, jars: jars, args: []string{"-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"},
			cluster: id, id: i + 1, controllers: controllers, replication: replication,
		}
		name := strconv.Itoa(n.id)
		d, err := n.daemon("kafka-"+name, opts)
		if err != nil {
			return err
		}
		if err := k.cluster.add(name, d, controller, replication); err != nil {
			return err
		}
	}
	return nil
}

// Brokers returns the addresses of the brokers as host:port. They stay the same across Restart.
func (k *KafkaCluster) Brokers() []string {
	var brokers []string
	for _, n := range k.nodes {
		brokers = append(brokers, n.Address())
	}
	return brokers
}
