package uitest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPages saves screenshots of all pages, wide, in dark mode and on a phone, and runs axe-core on each.
func TestPages(t *testing.T) {
	script, err := axe()
	require.NoError(t, err)
	w := newWorld(t, alice)
	w.badDay(t)
	w.forward(t)
	w.traffic(t, 60)
	w.exec(t, `INSERT INTO outbox_audit (actor, action, reason, filter, touched, ended_at) VALUES
		('alice@example.com', 'requeue', 'the broker takes larger ones now', '{"in": "outbox", "states": ["dead"], "error_group": "f47c61810e193dcc"}', 412, now()),
		('bob@example.com', 'pause', 'they asked us to wait until noon', '{"in": "outbox", "topic": "orders.placed"}', 1, now()),
		('alice@example.com', 'discard', 'test orders', '{"in": "outbox", "states": ["dead"], "ids": ["12", "13"]}', 2, NULL)`)
	dead := w.count(t, "SELECT min(id) FROM outbox WHERE topic = 'orders.placed' AND dead_at IS NOT NULL")
	b := newTab(t)
	for name, path := range map[string]string{
		"overview": "", "errors": "errors", "messages": "messages?topic=search.reindex",
		"message": fmt.Sprintf("message?id=%d", dead), "audit": "audit",
		"empty":    "messages?state=discarded&topic=none",
		"question": "act?verb=discard&state=dead&topic=orders.placed&from=messages",
		"failing":  "messages?state=failing", "inbox": "messages?in=inbox", "queue": "messages?in=queue",
	} {
		for _, look := range []struct {
			name          string
			width, height int64
			dark          bool
		}{{"wide", 1280, 900, false}, {"dark", 1280, 900, true}, {"phone", 390, 844, false}} {
			b.size(look.width, look.height)
			b.dark(look.dark)
			b.open(w.url + path)
			b.shoot(name + "-" + look.name)
			assert.Empty(t, b.axe(script), "%s, %s", name, look.name)
			assert.LessOrEqual(t, js[int64](b, "document.documentElement.scrollWidth"), look.width,
				"%s, %s: it is wider than the window", name, look.name)
		}
	}
	b.size(1280, 900)
	b.open(w.url + "messages")
	b.click(`a[data-ask][href*="verb=discard"]`)
	b.until(`!!document.querySelector("dialog[open] [data-question]")`)
	assert.Empty(t, b.axe(script), "a question in its dialog")
}

// TestEmpty shows the page of newly created tables.
func TestEmpty(t *testing.T) {
	script, err := axe()
	require.NoError(t, err)
	w := newWorld(t, alice)
	b := newTab(t)
	for _, page := range []string{"", "errors", "messages", "audit"} {
		b.open(w.url + page)
		b.shoot("new-" + cmp.Or(page, "overview"))
		assert.Empty(t, b.axe(script), page)
	}
}

// axe returns the problems that axe-core finds on the page.
func (b *tab) axe(script string) (list []string) {
	b.t.Helper()
	js[any](b, script+"; null")
	var found []struct {
		ID, Help string
		Nodes    []struct {
			HTML           string
			FailureSummary string
		}
	}
	answer := js[string](b, `axe.run(document, {resultTypes: ["violations"]}).then(r => JSON.stringify(r.violations))`)
	require.NoError(b.t, json.Unmarshal([]byte(answer), &found))
	for _, f := range found {
		for _, n := range f.Nodes {
			list = append(list, strings.Join(strings.Fields(f.ID+": "+f.Help+": "+n.HTML+" "+n.FailureSummary), " "))
		}
	}
	return list
}
