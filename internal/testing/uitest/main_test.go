// Package uitest drives the page in a real browser, headless Chromium, with a real Postgres. It saves screenshots in
// .cache/ui of the repository. `make test-ui` runs it; it needs chromium in the PATH, and npm once, for axe-core.
package uitest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

const (
	cache   = "../../../.cache" // as in .gitignore
	axeName = "axe-core-4.14.1"
)

// browser is the browser of all tests' tabs.
var browser context.Context

func TestMain(m *testing.M) {
	stop := services.StopOnSignal()
	code := run(m)
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop services:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) int {
	program, err := exec.LookPath("chromium")
	if err != nil {
		if program, err = exec.LookPath("google-chrome"); err != nil {
			fmt.Fprintln(os.Stderr, "uitest needs Chromium: apt-get install chromium, or the like")
			return 1
		}
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.DisableGPU,
		// The browser loads nothing but the page.
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("force-color-profile", "srgb"), chromedp.Flag("hide-scrollbars", true))
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	defer end()
	var cancel context.CancelFunc
	// caused by events that chromedp does not know yet
	browser, cancel = chromedp.NewContext(allocator, chromedp.WithErrorf(func(string, ...any) {}))
	defer cancel()
	if err := chromedp.Run(browser); err != nil {
		fmt.Fprintln(os.Stderr, "start Chromium:", err)
		return 1
	}
	return m.Run()
}

// axe returns the script of axe-core, from its npm package.
var axe = sync.OnceValues(func() (string, error) {
	script := filepath.Join(cache, axeName+".min.js")
	if b, err := os.ReadFile(script); err == nil {
		return string(b), nil
	}
	folder, err := os.MkdirTemp("", "uitest-axe-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(folder)
	for _, args := range [][]string{{"npm", "pack", "--silent", "axe-core@4.14.1"}, {"tar", "xzf", axeName + ".tgz"}} {
		command := exec.Command(args[0], args[1:]...)
		command.Dir = folder
		if out, err := command.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%v: %w: %s (it needs npm and the network once; or put axe.min.js of axe-core 4.14.1 "+
				"into .cache/%s.min.js)", args, err, out, axeName)
		}
	}
	b, err := os.ReadFile(filepath.Join(folder, "package", "axe.min.js"))
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	return string(b), os.WriteFile(script, b, 0o644)
})
