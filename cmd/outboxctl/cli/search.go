package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/millrace-go/watermill-outbox/admin"
)

// errFound ends a search early because it found its message.
var errFound = io.EOF

// tellEvery is the interval at which a search without a terminal prints its progress.
const tellEvery = 2 * time.Second

// search calls next for one page after another until it has as many messages as requested, or errFound, and prints
// them: each call searches for a bounded time, so it may return few. An interrupt prints the messages found so far.
func (a *app) search(ctx context.Context, p admin.Page, next func(context.Context, admin.Page) (*admin.List, error),
	people func(*admin.List) error,
) error {
	const most = 1000
	list := &admin.List{Messages: []admin.Message{}}
	s := a.searching()
	for want := p.Limit; ; p.After = list.Next {
		p.Limit = min(want-len(list.Messages), most)
		page, err := next(ctx, p)
		if err != nil && !errors.Is(err, errFound) {
			s.end()
			if ctx.Err() != nil && p.After != "" {
				return errors.Join(err, a.show(list, func() error { return people(list) }))
			}
			return err
		}
		list.Messages, list.Next, list.Progress = append(list.Messages, page.Messages...), page.Next, page.Progress
		if err != nil || list.Next == "" || len(list.Messages) >= want {
			s.end()
			return a.show(list, func() error {
				if len(list.Messages) >= want {
					list.Progress = admin.Progress{} // it was not waited for
				}
				return people(list)
			})
		}
		s.tell(list)
	}
}

// searching prints the progress of a search: on one line of a terminal, or as an occasional line elsewhere.
type searching struct {
	a    *app
	bar  *progressbar.ProgressBar
	told time.Time
}

func (a *app) searching() *searching {
	s := &searching{a: a, told: time.Now()}
	if a.world.ErrWidth != nil && a.world.ErrWidth() > 0 && !a.isJSON() {
		s.bar = progressbar.NewOptions(100, progressbar.OptionSetWriter(a.err), progressbar.OptionSetWidth(10),
			progressbar.OptionSetPredictTime(false), progressbar.OptionClearOnFinish())
	}
	return s
}

func (s *searching) tell(l *admin.List) {
	if s.bar != nil {
		s.bar.Describe(fmt.Sprintf("found %d%s", len(l.Messages), searched(l.Progress)))
		_ = s.bar.Set(int(l.Progress.Share * 100))
		return
	}
	if now := time.Now(); now.Sub(s.told) >= tellEvery {
		s.told = now
		s.a.inform("found %s%s", strconv.Itoa(len(l.Messages)), searched(l.Progress))
	}
}

func (s *searching) end() {
	if s.bar != nil {
		_ = s.bar.Clear()
	}
}

// searched describes how far a search has come; "" = unknown.
func searched(l admin.Progress) string {
	switch {
	case l.ID == "":
		return ""
	case l.Share == 0:
		return ", searched as far as " + clean(l.ID)
	}
	to := "id " + l.ID
	if !l.WrittenAt.IsZero() {
		to += " of " + moment(l.WrittenAt)
	}
	return fmt.Sprintf(", searched %.0f%% of the outbox, as far as %s", l.Share*100, to)
}
