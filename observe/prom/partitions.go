package prom

import (
	"context"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-go/watermill-outbox/internal/meter"
)

// pauses are the reasons why a partition is not read.
var pauses = []meter.PauseReason{
	meter.PausedByBlockedKey, meter.PausedByHandlers, meter.PausedByBytes, meter.PausedByHungHandlers,
}

// partitionGauges describe the partitions that subscribers in this process read.
type partitionGauges struct {
	lag, pending, blocked, oldest, paused *prometheus.GaugeVec
}

func (o *observer) definePartitions() {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		opts := prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}
		v := prometheus.NewGaugeVec(opts, append([]string{"group", "topic", "partition"}, labels...))
		o.list = append(o.list, v)
		return v
	}
	o.partitions = partitionGauges{
		lag: gauge("partition_lag_messages", "Offsets between the oldest unfinished message and the end of the "+
			"partition."),
		pending: gauge("partition_pending_messages", "Unfinished messages of the partition that are in memory."),
		blocked: gauge("partition_blocked_keys", "Messages that failed and wait for another attempt, each blocking its key."),
		oldest: gauge("partition_blocked_seconds", "Time since the first failure of the key that has been blocked longest; "+
			"0 = no key is blocked."),
		paused: gauge("partition_paused", "1 if reading the partition is paused, else 0: because a key is blocked, "+
			"handlers are slower than the broker, the limit of bytes in memory is reached, or no handler has returned for "+
			"five minutes.", "by"),
	}
}

// PartitionState implements meter.PartitionObserver. It removes the series of a revoked partition.
func (o *observer) PartitionState(_ context.Context, s meter.PartitionState) {
	own := labels(s.Group, s.Topic, strconv.Itoa(int(s.Partition)))
	p := &o.partitions
	if !s.Owned {
		of := prometheus.Labels{"group": own[0], "topic": own[1], "partition": own[2]}
		for _, v := range []*prometheus.GaugeVec{p.lag, p.pending, p.blocked, p.oldest, p.paused} {
			v.DeletePartialMatch(of)
		}
		return
	}
	p.lag.WithLabelValues(own...).Set(float64(s.Lag))
	p.pending.WithLabelValues(own...).Set(float64(s.Pending))
	p.blocked.WithLabelValues(own...).Set(float64(s.BlockedKeys))
	p.oldest.WithLabelValues(own...).Set(s.OldestBlocked.Seconds())
	for _, by := range pauses {
		paused := 0.0
		if s.Paused == by {
			paused = 1
		}
		p.paused.WithLabelValues(append(own, strings.ReplaceAll(string(by), " ", "_"))...).Set(paused)
	}
}
