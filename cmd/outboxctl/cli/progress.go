package cli

import (
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/millrace-go/watermill-outbox/admin"
)

// progress is a bar with rate and time left on standard error, if that is a terminal.
type progress struct{ bar *progressbar.ProgressBar }

func (a *app) progress(total admin.Count) progress {
	width := 0
	if a.world.ErrWidth != nil {
		width = a.world.ErrWidth()
	}
	if width == 0 || a.isJSON() {
		return progress{}
	}
	most := total.N
	if total.More {
		most = -1 // unknown; then it shows the count and the rate
	}
	bar := progressbar.NewOptions64(most,
		progressbar.OptionSetWriter(a.err), progressbar.OptionSetWidth(max(10, min(40, width-50))),
		progressbar.OptionShowCount(),
		progressbar.OptionShowIts(), progressbar.OptionSetItsString("messages"),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(), progressbar.OptionSetSpinnerChangeInterval(0))
	bar.StartWithoutRender() // otherwise the first rate would count from the first poll
	return progress{bar}
}

func (p progress) set(n int64) {
	if p.bar != nil {
		if most := p.bar.GetMax64(); most > 0 && n > most { // more arrived meanwhile
			p.bar.ChangeMax64(n)
		}
		_ = p.bar.Set64(n)
	}
}

func (p progress) end() {
	if p.bar != nil {
		_ = p.bar.Finish()
		_ = p.bar.Clear()
	}
}
