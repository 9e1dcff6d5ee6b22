package uitest

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
)

// broken lists numbers, ages and names that are broken across lines although they fit on one line.
const broken = `(() => {
	const bad = [];
	for (const cell of document.querySelectorAll(".num, .figure, time + .quiet, .long bdi")) {
		const text = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
		while (text.nextNode()) {
			if (!/\d/.test(text.currentNode.data) && !cell.matches(".long bdi") || text.currentNode.parentElement.closest(".sr")) continue;
			const range = document.createRange();
			range.selectNodeContents(text.currentNode);
			const lines = new Set([...range.getClientRects()].map((r) => Math.round(r.top)));
			if (lines.size > 1) bad.push(text.currentNode.data);
		}
	}
	return bad.join(", ");
})()`

// TestPhone shows long lists and large numbers on narrow screens: a list scrolls on its own, so the content below it is
// one or two swipes away, and no number is broken.
func TestPhone(t *testing.T) {
	w := newWorld(t, alice)
	w.badDay(t)
	w.exec(t, `INSERT INTO outbox (uuid, topic, payload, due_at, dead_at, attempts, last_error)
		SELECT gen_random_uuid(), 'a-topic-with-quite-a-long-name-' || i % 60, '', now() + interval '1 hour',
		       CASE WHEN i % 3 = 0 THEN now() END, CASE WHEN i % 3 = 0 THEN 10 ELSE 0 END, CASE WHEN i % 3 = 0 THEN 'refused' END
		  FROM generate_series(1, 90000) i`)
	w.exec(t, `INSERT INTO outbox (uuid, topic, payload, due_at, attempts, last_error)
		VALUES (gen_random_uuid(), 'emails.welcome', '', now() + interval '59 s', 1, 'smtp: 451 try again later')`)
	failing := w.count(t, "SELECT min(id) FROM outbox WHERE topic = 'emails.welcome' AND attempts > 0")
	one := fmt.Sprintf("message?id=%d", failing)
	b := newTab(t)
	for _, width := range []int64{360, 390, 600, 760} {
		b.size(width, 844)
		for path, most := range map[string]int64{
			"": 7 * 844, "messages": 4 * 844, "messages?state=dead": 4 * 844, "audit": 4 * 844, one: 4 * 844,
			fmt.Sprintf("find?q=%d", failing): 2 * 844,
		} {
			what := fmt.Sprintf("%d wide, /%s", width, path)
			b.open(w.url + path)
			assert.LessOrEqual(t, js[int64](b, "document.documentElement.scrollHeight"), most, what)
			assert.LessOrEqual(t, js[int64](b, "document.documentElement.scrollWidth"), width, what)
			assert.Empty(t, js[string](b, broken), "%s: broken numbers", what)
		}
	}
}

// TestFiguresOfTheChart: users who cannot hover read the figures from a table, by keyboard, and it stays open when the
// page refreshes.
func TestFiguresOfTheChart(t *testing.T) {
	w := newWorld(t, alice)
	w.badDay(t)
	b := newTab(t)
	b.stopClock()
	b.open(w.url)
	b.run(chromedp.Focus(".steps summary", chromedp.ByQuery), chromedp.KeyEvent(kb.Enter))
	b.until(`document.querySelector(".steps").open`)
	assert.Equal(t, 60, js[int](b, `document.querySelectorAll(".steps tbody tr").length`))
	assert.Contains(t, js[string](b, `document.querySelector(".steps").innerText`), "UTC")
	js[any](b, "document.activeElement.blur(); window.before = document.querySelector('[data-live]'); null")
	b.until(`passTime().then(() => window.before !== document.querySelector("[data-live]"))`)
	assert.True(t, js[bool](b, `document.querySelector(".steps").open`), "the page was refreshed")
}
