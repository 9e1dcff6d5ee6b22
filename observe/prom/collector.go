package prom

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/prometheus/client_golang/prometheus"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// CollectorConfig configures NewCollector. The zero value is ready for use.
type CollectorConfig struct {
	// QueryTimeout bounds the statement and the wait for a connection; default 5 s, -1 no limit. Keep it below
	// Prometheus' scrape_timeout (10 s).
	QueryTimeout time.Duration
	// Topics are topics whose series exist from the start; default none. Set them for alerts on topics that may stay
	// empty.
	Topics []string
}

func (c *CollectorConfig) setDefaults() {
	if c.QueryTimeout == 0 {
		c.QueryTimeout = 5 * time.Second
	}
}

func (c CollectorConfig) validate() error {
	if c.QueryTimeout < -1 {
		return fmt.Errorf("CollectorConfig.QueryTimeout is %s: use -1 for none", c.QueryTimeout)
	}
	return nil
}

// collector exports the state of a handle's tables.
type collector struct {
	db     *core.DB
	cfg    CollectorConfig
	logger watermill.LoggerAdapter
	descs  descs

	mu      sync.Mutex
	known   known
	failing bool // the last collection has failed
}

// NewCollector returns a collector that exports the state of a handle's tables. It holds no resources, runs its query
// when it is collected, and is safe for concurrent use. NewCollector does no I/O, and returns outbox.ErrNoDB or an
// error that names an invalid field. A nil logger means db's logger. Collectors of several handles may be in one
// registry if the handles have different names.
func NewCollector(db *outbox.DB, cfg CollectorConfig, logger watermill.LoggerAdapter) (prometheus.Collector, error) {
	cfg.setDefaults()
	own := (*core.DB)(db)
	if err := errors.Join(own.Check(), cfg.validate()); err != nil {
		return nil, err
	}
	c := &collector{db: own, cfg: cfg, logger: own.Logger(logger), descs: newDescs(own.Name())}
	for _, topic := range cfg.Topics {
		c.known.topics.add(topic)
	}
	return c, nil
}

// Describe is part of prometheus.Collector.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range c.descs.all() {
		to <- d
	}
}

// Collect is part of prometheus.Collector.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithCancel(context.Background())
	if c.cfg.QueryTimeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, c.cfg.QueryTimeout)
	}
	defer cancel()
	begun := time.Now()
	s, err := scrape(ctx, c.db)
	took := time.Since(begun)

	c.mu.Lock()
	defer c.mu.Unlock()
	c.log(err)
	up := 0.0
	if err == nil {
		up = 1
		c.known.learn(s)
		c.show(s, to)
	}
	to <- prometheus.MustNewConstMetric(c.descs.up, prometheus.GaugeValue, up)
	to <- prometheus.MustNewConstMetric(c.descs.seconds, prometheus.GaugeValue, took.Seconds())
}

// log logs once that the tables cannot be read, and once that they can be read again.
func (c *collector) log(err error) {
	switch {
	case err != nil && !c.failing:
		// Cause: the database; figures are missing meanwhile.
		// Cure: fix the cause that the error names.
		c.logger.Error("reading the tables for metrics failed: retrying: logged once until it works", err, nil)
	case err == nil && c.failing:
		c.logger.Info("reading the tables for metrics works again", nil)
	}
	c.failing = err != nil
}
