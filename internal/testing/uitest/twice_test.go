package uitest

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
)

const (
	askedHere  = `!!document.querySelector("dialog[open] [data-question]")`
	wasDone    = `!!document.querySelector(".note[role=status]")`
	requeueAll = `a[data-ask][href*="verb=requeue"][href*="state=dead"]`
)

// TestTwoOperators: two operators confirm the same action: each message is requeued once, and each operator sees the
// result of their own action.
func TestTwoOperators(t *testing.T) {
	w := newWorld(t, alice)
	w.badDay(t)
	one, two := newTab(t), newTab(t)
	before := w.outbox(t, deadOnes)
	for _, b := range []*tab{one, two} {
		b.open(w.url + "messages?state=dead")
		b.click(requeueAll)
		b.until(askedHere)
	}
	for _, b := range []*tab{one, two} {
		b.click("dialog .button.primary")
		b.until(wasDone)
	}
	assert.Zero(t, w.outbox(t, deadOnes))
	assert.Equal(t, before, w.outbox(t, "metadata->>'outbox_generation' = '1'"), "each once")
	assert.Equal(t, before, w.count(t, "SELECT sum(touched)::int FROM outbox_audit"))
	assert.Equal(t, 2, w.count(t, "SELECT count(*) FROM outbox_audit WHERE ended_at IS NOT NULL AND outcome = ''"))
	assert.Contains(t, js[string](two, `document.querySelector(".note[role=status]").innerText`), "Requeued 0 messages")
}

// TestBackAndReload: after an action, neither going back to its confirmation nor reloading the result repeats it.
func TestBackAndReload(t *testing.T) {
	w := newWorld(t, alice)
	w.badDay(t)
	b := newTab(t)
	b.open(w.url + "messages?state=dead")
	b.open(js[string](b, `document.querySelector('`+requeueAll+`').href`))
	b.run(chromedp.Reload())
	b.until(`!!document.querySelector("main [data-question]")`)
	b.click("main .button.primary")
	b.until(wasDone)
	again := w.outbox(t, "metadata->>'outbox_generation' = '1'")
	assert.NotZero(t, again)
	b.run(chromedp.Reload())
	b.until(wasDone)
	js[any](b, "history.back(); null") // the page may come from memory, without being loaded
	b.until(`!!document.querySelector("main [data-question]")`)
	b.run(chromedp.Reload())
	b.until(`document.querySelector("main h1").innerText == "Nothing to do"`)
	assert.Equal(t, again, w.outbox(t, "metadata->>'outbox_generation' = '1'"))
	assert.Equal(t, 1, w.count(t, "SELECT count(*) FROM outbox_audit"))
}
