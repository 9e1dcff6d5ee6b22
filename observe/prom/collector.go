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
	// QueryTimeout bounds a collection, including the wait for a connection; default 5 s, -1 no limit. Keep it below
	// Prometheus's scrape_timeout, which is 10 s by default.
	QueryTimeout time.Duration
	// Topics are topics whose series exist from the start; default none. The series of other topics begin when their
	// first message is seen. Set it if alerts depend on a topic that may have no messages.
	Topics []string
}

func (c *CollectorConfig) setDefaults() {
	if c.QueryTimeout == 0 {
		c.QueryTimeout = 5 * time.Second
	}
}

func (c CollectorConfig) validate() error {
	if c.QueryTimeout < -1 {
		return fmt.Errorf("CollectorConfig.QueryTimeout is %s: use a positive duration, 0 for 5s, or -1 for no limit",
			c.QueryTimeout)
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
	failing bool // the last collection failed
}

// NewCollector returns a collector that exports the state of a handle's tables. It queries the database whenever it is
// collected, holds no resources in between, and is safe for concurrent use. A nil logger means db's logger.
//
// NewCollector does no I/O. It returns outbox.ErrNoDB if db is nil, or an error that names the invalid field. One
// registry can hold the collectors of several handles if the handles have different names.
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

// Describe implements prometheus.Collector.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range c.descs.all() {
		to <- d
	}
}

// Collect implements prometheus.Collector.
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
		c.known.add(s)
		c.show(s, to)
	}
	to <- prometheus.MustNewConstMetric(c.descs.up, prometheus.GaugeValue, up)
	to <- prometheus.MustNewConstMetric(c.descs.seconds, prometheus.GaugeValue, took.Seconds())
}

// log reports the first of several failures in a row, and the first success after them.
func (c *collector) log(err error) {
	switch {
	case err != nil && !c.failing:
		// Cause: a query failed or took longer than CollectorConfig.QueryTimeout. Until one succeeds, outbox_up is 0 and
		// the figures from the tables are missing.
		// Cure: fix the cause that the error names.
		c.logger.Error("reading the tables for metrics failed: retrying at the next scrape: logged once until it works", err,
			nil)
	case err == nil && c.failing:
		c.logger.Info("reading the tables for metrics works again", nil)
	}
	c.failing = err != nil
}
