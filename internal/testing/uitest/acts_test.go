package uitest

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin/ui"
)

var alice = ui.Access{Actor: "alice@example.com", Act: true, Payloads: true}

// outbox counts the rows of the outbox that match a condition.
func (w *world) outbox(t *testing.T, where string) int {
	t.Helper()
	return w.count(t, "SELECT count(*) FROM outbox WHERE "+where)
}

const (
	deadOnes      = "dead_at IS NOT NULL AND published_at IS NULL"
	discardedOnes = "dead_at IS NOT NULL AND published_at IS NOT NULL"
)

// TestActs clicks each action, and confirms it in its dialog.
func TestActs(t *testing.T) {
	w := newWorld(t, alice)
	w.badDay(t)
	w.exec(t, `INSERT INTO outbox (uuid, topic, payload, published_at) SELECT gen_random_uuid(), 'news', '', now() `+
		`FROM generate_series(1, 8)`)
	w.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, attempts, due_at, last_error) SELECT gen_random_uuid(), `+
		`'blocked', 'k' || i % 2, '', 1, now() + interval '1 hour', 'refused' FROM generate_series(1, 4) i`)
	b := newTab(t)
	sure := func(reason string) {
		t.Helper()
		b.until(`!!document.querySelector("dialog[open] [data-question]")`)
		if reason != "" {
			b.run(chromedp.SendKeys("dialog input[name=reason]", reason, chromedp.ByQuery))
		}
		b.click("dialog .button.primary")
		b.until(`!!document.querySelector(".note[role=status]") && !document.querySelector("dialog[open]")`)
	}
	link := func(verb, of string) string { return `a[data-ask][href*="verb=` + verb + `"][href*="` + of + `"]` }

	b.open(w.url)
	b.click(link("pause", "orders.placed"))
	sure("they asked us to")
	b.until(`document.querySelector(".verdict").textContent.includes("A topic is paused: orders.placed")`)
	assert.Equal(t, 1, w.count(t, "SELECT count(*) FROM outbox_topics WHERE topic = 'orders.placed'"))
	b.shoot("done-wide")
	b.click(".fold summary") // it is not among the worst
	b.click(link("resume", "orders.placed"))
	sure("")
	assert.Zero(t, w.count(t, "SELECT count(*) FROM outbox_topics WHERE topic = 'orders.placed'"))

	b.open(w.url + "errors")
	before := w.outbox(t, deadOnes)
	b.click(link("requeue", "group="))
	sure("the broker takes larger ones now")
	assert.Equal(t, before-42, w.outbox(t, deadOnes), "the largest group")
	b.click(link("discard", "state=dead"))
	sure("nobody needs them")
	assert.Equal(t, 17, w.outbox(t, discardedOnes))

	b.open(w.url + "messages?state=dead")
	b.until(`document.querySelector("[data-needs-choice]").disabled`)
	b.click("tbody tr:nth-child(2) input[type=checkbox]")
	b.until(`document.querySelector("[data-chosen]").innerText == "1 selected:" && ` +
		`!document.querySelector("[data-needs-choice]").disabled`)
	b.click("button[value=requeue]")
	sure("")
	assert.Equal(t, 2, w.outbox(t, deadOnes))
	b.click("[data-all]")
	b.until(`document.querySelector("[data-chosen]").innerText == "2 selected:"`)
	b.click("button[value=discard]")
	sure("nor these")
	assert.Zero(t, w.outbox(t, deadOnes))

	b.open(w.url + "messages?state=failing&topic=blocked")
	b.click(link("skip", "topic=blocked"))
	sure("poison")
	assert.Equal(t, 2, w.outbox(t, "topic = 'blocked' AND "+discardedOnes), "one of each key")
	b.click(link("retry_now", "topic=blocked"))
	sure("")
	assert.Equal(t, 2, w.outbox(t, "topic = 'blocked' AND due_at <= now() AND published_at IS NULL"))
	b.open(w.url + "messages?state=done&topic=news")
	b.click(link("replay", "topic=news"))
	sure("")
	assert.Equal(t, 8, w.outbox(t, "topic = 'news' AND published_at IS NULL AND attempts = 1"))
	b.open(w.url + "messages?in=inbox")
	b.click(link("requeue", "in=inbox"))
	sure("")
	b.open(w.url + "messages?in=queue")
	b.click(link("discard", "in=queue"))
	sure("no such account")
	assert.Zero(t, w.count(t, "SELECT (SELECT count(*) FROM inbox WHERE dead_at IS NOT NULL) + (SELECT count(*) "+
		"FROM inbox_queue WHERE state = 'dead')"))
	assert.Equal(t, 11, w.count(t, "SELECT count(*) FROM outbox_audit WHERE actor = 'alice@example.com'"))
	b.open(w.url + "audit")
	b.shoot("audit-full-wide")
}

// TestDialog opens confirmations and does not confirm them.
func TestDialog(t *testing.T) {
	w := newWorld(t, alice)
	w.badDay(t)
	b := newTab(t)
	b.open(w.url + "messages")
	const open = `!!document.querySelector("dialog[open] [data-question]")`
	ask := `a[data-ask][href*="verb=discard"]`
	b.click(ask)
	b.until(open)
	b.shootWindow("dialog-wide")
	assert.Equal(t, "reason", js[string](b, "document.activeElement.name"), "the reason has the focus")
	b.click("dialog [data-close]")
	b.until("!(" + open + ")")
	b.click(ask)
	b.until(open)
	b.click("dialog .button.primary") // without a reason
	assert.True(t, js[bool](b, open))
	b.run(chromedp.KeyEvent(kb.Escape))
	b.until("!(" + open + ")")
	require.Equal(t, 62, w.outbox(t, deadOnes))
	assert.Zero(t, w.count(t, "SELECT count(*) FROM outbox_audit"))
}

// TestKeyboard uses only the keyboard: from the top of the page to a confirmation, through it, and back to the page.
func TestKeyboard(t *testing.T) {
	w := newWorld(t, alice)
	w.badDay(t)
	b := newTab(t)
	b.open(w.url + "errors")
	tabTo := func(what string) {
		t.Helper()
		for range 40 {
			b.run(chromedp.KeyEvent(kb.Tab))
			if js[bool](b, "document.activeElement.matches("+what+")") {
				require.NotEqual(t, "none", js[string](b, "getComputedStyle(document.activeElement).outlineStyle"),
					"the focus can be seen")
				return
			}
		}
		t.Fatalf("the keyboard does not reach %s", what)
	}
	tabTo(`".skip"`)
	b.run(chromedp.KeyEvent(kb.Enter))
	tabTo("'a[href*=\"verb=requeue\"]'")
	b.run(chromedp.KeyEvent(kb.Enter))
	b.until(`!!document.querySelector("dialog[open] [data-question]")`)
	b.run(chromedp.KeyEvent("mended"))
	tabTo(`"dialog .primary"`)
	b.run(chromedp.KeyEvent(kb.Enter))
	b.until(`!!document.querySelector(".note[role=status]")`)
	assert.Equal(t, 20, w.outbox(t, deadOnes))
	assert.Equal(t, 1, w.count(t, "SELECT count(*) FROM outbox_audit WHERE reason = 'mended'"))
}

// TestWithoutScript disables JavaScript.
func TestWithoutScript(t *testing.T) {
	w := newWorld(t, alice)
	w.badDay(t)
	b := newTab(t)
	b.scripts(false)
	b.open(w.url + "messages")
	b.click("tbody tr:nth-child(1) input[type=checkbox]")
	b.click("button[value=discard]")
	b.run(chromedp.WaitVisible("main [data-question]", chromedp.ByQuery),
		chromedp.SendKeys("main input[name=reason]", "by hand", chromedp.ByQuery))
	b.click("main .button.primary")
	b.run(chromedp.WaitVisible(".note[role=status]", chromedp.ByQuery))
	assert.Equal(t, 1, w.outbox(t, discardedOnes))
}

// TestRefresh: figures refresh on their own, but not while the tab is hidden or the user has stopped them.
func TestRefresh(t *testing.T) {
	w := newWorld(t, ui.Access{})
	b := newTab(t)
	b.stopClock()
	b.open(w.url)
	hide := func(hidden bool) {
		js[bool](b, `Object.defineProperty(document, "hidden", {configurable: true, value: `+
			map[bool]string{true: "true", false: "false"}[hidden]+`}), document.dispatchEvent(new Event("visibilitychange"))`)
	}
	add := func(topic string) {
		w.exec(t, `INSERT INTO outbox (uuid, topic, payload) VALUES (gen_random_uuid(), $1, '')`, topic)
	}
	has := func(topic string) string { return `document.querySelector("main").innerText.includes("` + topic + `")` }
	comes := func(topic string) { b.until("passTime().then(() => " + has(topic) + ")") }
	add("first")
	comes("first")
	hide(true)
	asked := w.asked.Load()
	add("second")
	b.passTime()
	assert.False(t, js[bool](b, has("second")))
	assert.Equal(t, asked, w.asked.Load(), "a hidden tab requests nothing")
	hide(false)
	comes("second")
	b.click("#live")
	add("third")
	b.passTime()
	assert.False(t, js[bool](b, has("third")), "refreshing was stopped")
	b.click("#live")
	comes("third")
}
