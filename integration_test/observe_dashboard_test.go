package integration_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/observe/prom"
)

var (
	selectorShape  = regexp.MustCompile(`\boutbox_(\w+)\{([^}]*)\}`)
	conditionShape = regexp.MustCompile(`(\w+)=~?"([^"]*)"`)
)

// TestFirstScrapeFillsTheTiles: what the dashboard's tiles ask for is in the first scrape of a service that has no
// message yet, so that none of them says "No data".
func TestFirstScrapeFillsTheTiles(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("../dashboards/grafana.json")
	require.NoError(t, err)
	var board struct {
		Panels []struct {
			Type, Title string
			Targets     []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(content, &board))
	series := scraped(t, newCollector(t, newPgxHandle(t, newMigratedDatabase(t)), prom.CollectorConfig{}))
	tiles := 0
	for _, p := range board.Panels {
		if p.Type != "stat" {
			continue
		}
		tiles++
		for _, q := range p.Targets {
			selectors := selectorShape.FindAllStringSubmatch(q.Expr, -1)
			require.NotEmpty(t, selectors, q.Expr)
			for _, s := range selectors {
				assert.True(t, anySeries(series, s[1], s[2]), "tile %q has no data: %s of %v", p.Title, s[0], series)
			}
		}
	}
	assert.GreaterOrEqual(t, tiles, 6)
}

// anySeries says whether a series of this name meets the conditions of a selector. What the viewer chooses is anything.
func anySeries(all map[string]float64, name, conditions string) bool {
	for series := range all {
		labels, ok := strings.CutPrefix(series, name+"{")
		if !ok {
			continue
		}
		met := true
		for _, c := range conditionShape.FindAllStringSubmatch(conditions, -1) {
			if !strings.HasPrefix(c[2], "$") {
				met = met && regexp.MustCompile(`(^|,)`+c[1]+`=(`+c[2]+`)[,}]`).MatchString(labels)
			}
		}
		if met {
			return true
		}
	}
	return false
}
