package uitest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// tab is one tab of the browser, closed with the test. Errors of its page fail the test.
type tab struct {
	t   *testing.T
	ctx context.Context
}

func newTab(t *testing.T) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser)
	t.Cleanup(cancel)
	ctx, stop := context.WithTimeout(ctx, 10*patience)
	t.Cleanup(stop)
	b := &tab{t, ctx}
	chromedp.ListenTarget(ctx, func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			t.Errorf("the page threw: %s", e.ExceptionDetails.Error())
		case *log.EventEntryAdded: // for example refused by the Content-Security-Policy, or not found
			if strings.Contains(e.Entry.Text, "axe") {
				return
			}
			t.Errorf("the browser reports: %s %s", e.Entry.Text, e.Entry.URL)
		}
	})
	b.run(log.Enable())
	b.size(1280, 900)
	return b
}

func (b *tab) run(actions ...chromedp.Action) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Run(b.ctx, actions...))
}

func (b *tab) open(url string) {
	b.t.Helper()
	b.run(chromedp.Navigate(url), chromedp.WaitVisible("main", chromedp.ByQuery))
}

func (b *tab) size(width, height int64) {
	b.run(chromedp.EmulateViewport(width, height, chromedp.EmulateScale(1.5)))
}

func (b *tab) dark(on bool) {
	scheme := "light"
	if on {
		scheme = "dark"
	}
	b.run(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme},
	}))
}

// shoot saves a screenshot of the whole page.
func (b *tab) shoot(name string) {
	b.t.Helper()
	var picture []byte
	b.run(chromedp.FullScreenshot(&picture, 100))
	require.NoError(b.t, os.WriteFile(filepath.Join(pictures(b.t), name+".png"), picture, 0o644))
}

// shootWindow saves a screenshot of the window.
func (b *tab) shootWindow(name string) {
	b.t.Helper()
	var picture []byte
	b.run(chromedp.CaptureScreenshot(&picture))
	require.NoError(b.t, os.WriteFile(filepath.Join(pictures(b.t), name+".png"), picture, 0o644))
}

// pictures returns the folder for screenshots.
func pictures(t *testing.T) string {
	t.Helper()
	folder := filepath.Join(cache, "ui")
	require.NoError(t, os.MkdirAll(folder, 0o755))
	return folder
}

// js runs a script and returns its result.
func js[T any](b *tab, script string) (v T) {
	b.t.Helper()
	b.run(chromedp.Evaluate(script, &v, func(p *runtime.EvaluateParams) *runtime.EvaluateParams {
		return p.WithAwaitPromise(true)
	}))
	return v
}

// until waits until a script returns true.
func (b *tab) until(script string) {
	b.t.Helper()
	for deadline := time.Now().Add(patience); !js[bool](b, script); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("did not become true: %s\n%s", script, js[string](b, "document.body.innerText"))
		}
	}
}

// stopClock makes timers of pages opened from now on wait for passTime.
func (b *tab) stopClock() {
	const script = `(() => {
		const waiting = new Map();
		let last = 0;
		window.setTimeout = (call) => { waiting.set(++last, call); return last; };
		window.clearTimeout = (id) => { waiting.delete(id); };
		window.passTime = async () => {
			const due = [...waiting.values()];
			waiting.clear();
			for (const call of due) await call();
			return true;
		};
	})()`
	b.run(chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := page.AddScriptToEvaluateOnNewDocument(script).Do(ctx)
		return err
	}))
}

// passTime runs the page's timers, and returns when they are done.
func (b *tab) passTime() { js[bool](b, "passTime()") }

// click clicks the first element that matches a selector.
func (b *tab) click(selector string) {
	b.t.Helper()
	b.run(chromedp.Click(selector, chromedp.ByQuery, chromedp.NodeVisible))
}

// scripts enables or disables JavaScript for pages opened from now on.
func (b *tab) scripts(on bool) {
	b.run(emulation.SetScriptExecutionDisabled(!on))
}
