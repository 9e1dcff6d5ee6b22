package services

import (
	"context"
	"sync"

	"github.com/twmb/franz-go/pkg/kfake"
)

type fakeKafka struct {
	close func()
}

func startFakeKafka() (*Kafka, error) {
	var cluster *kfake.Cluster
	var err error
	for range firstAttempts {
		var port int
		if port, err = freePort(); err != nil {
			return nil, err
		}
		cluster, err = kfake.NewCluster(
			kfake.NumBrokers(1),
			kfake.Ports(port),
			kfake.AllowAutoTopicCreation(),
			kfake.DefaultNumPartitions(4),
		)
		if err == nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	k := &Kafka{brokers: cluster.ListenAddrs(), fake: &fakeKafka{close: sync.OnceFunc(cluster.Close)}}
	if _, err := clusterID(context.Background(), k.brokers); err != nil {
		cluster.Close()
		return nil, err
	}
	register(k.fake)
	return k, nil
}

func (f *fakeKafka) Close() error {
	unregister(f)
	f.close()
	return nil
}
