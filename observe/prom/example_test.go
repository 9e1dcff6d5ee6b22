package prom_test

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/millrace-go/watermill-outbox/observe"
	"github.com/millrace-go/watermill-outbox/observe/prom"
)

// An observer is registered once and passed to handles, in outbox.DBConfig.Observers. Here the example calls it as a
// forwarder would.
func Example() {
	seen, err := prom.NewObserver(prom.ObserverConfig{})
	if err != nil {
		log.Fatal(err)
	}
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(seen)

	seen.(observe.DeadObserver).MessageDead(context.Background(), observe.MessageDead{DB: "shop", Topic: "orders"})

	scrape := httptest.NewRecorder()
	promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}).ServeHTTP(scrape, httptest.NewRequest("GET", "/metrics", nil))
	for lines := bufio.NewScanner(scrape.Body); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "outbox_deaths_total") {
			fmt.Println(lines.Text())
		}
	}
	// Output: outbox_deaths_total{db="shop",topic="orders"} 1
}
