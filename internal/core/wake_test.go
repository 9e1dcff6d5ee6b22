package core

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// recordingPool records notifications to other processes, sent with a COMMIT or alone.
type recordingPool struct {
	drive.Pool
	takesHints bool
	hints      []drive.Statement
	alone      atomic.Int64
}

func (p *recordingPool) Name() string { return "recording" }
func (p *recordingPool) ID() any      { return p }
func (p *recordingPool) Exec(context.Context, string, ...any) (int64, error) {
	p.alone.Add(1)
	return 0, nil
}
func (p *recordingPool) Begin(context.Context, drive.TxOptions) (drive.OwnTx, error) {
	return recordingTx{p: p}, nil
}

type recordingTx struct {
	drive.OwnTx
	p *recordingPool
}

func (t recordingTx) Hints() bool { return t.p.takesHints }
func (t recordingTx) Commit(_ context.Context, _, hints []drive.Statement) error {
	t.p.hints = append(t.p.hints, hints...)
	return nil
}

func TestFirstNotificationGoesWithCommit(t *testing.T) {
	for _, takesHints := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			p := &recordingPool{takesHints: takesHints}
			db, err := NewDB(p, Config{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			commit := func(wrote bool) {
				t.Helper()
				if err := InTx(t.Context(), db, TxOptions{}, func(ctx context.Context) error {
					if wrote {
						db.WakeLater(ctx, Notification{Outbox: true})
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			want := func(when string, with, alone int) {
				t.Helper()
				if !takesHints {
					with, alone = 0, with+alone
				}
				if len(p.hints) != with || int(p.alone.Load()) != alone {
					t.Errorf("hints %v, %s: %d with COMMIT and %d alone, want %d and %d", takesHints, when, len(p.hints),
						p.alone.Load(), with, alone)
				}
			}
			commit(false)
			want("nothing was written", 0, 0)
			commit(true)
			want("the first commit", 1, 0)
			commit(true)
			commit(true)
			want("the next commits within a moment wait", 1, 0)
			time.Sleep(notifyInterval)
			synctest.Wait()
			want("and are sent together", 1, 1)
			time.Sleep(notifyInterval)
			synctest.Wait()
			want("once", 1, 1)
			commit(true)
			want("after a while", 2, 1)
			if takesHints && p.hints[0].SQL != sqltext.Notify {
				t.Errorf("the hint is %q", p.hints[0].SQL)
			}
			time.Sleep(notifyInterval)
		})
	}
}
