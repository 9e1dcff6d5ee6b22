package trouble

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// lines remembers what was logged, with its level.
type lines struct {
	watermill.NopLogger
	all *[]string
}

func (l lines) add(level, msg string) { *l.all = append(*l.all, level+": "+msg) }
func (l lines) Error(m string, err error, _ watermill.LogFields) {
	l.add("error", fmt.Sprint(m, ": ", err))
}
func (l lines) Info(m string, _ watermill.LogFields)  { l.add("info", m) }
func (l lines) Debug(m string, _ watermill.LogFields) { l.add("debug", m) }

func TestLogTellsOfTroubleNowAndThen(t *testing.T) {
	var got []string
	l := Log{Logger: lines{all: &got}, What: "reading"}
	down := errors.New("down")
	l.Tell(nil)
	l.Tell(context.Canceled)
	l.Tell(down)
	l.Tell(down)
	l.Tell(fmt.Errorf("read: %w", context.Canceled))
	l.last = l.last.Add(-interval - time.Second)
	l.Tell(down)
	l.Tell(nil)
	l.Tell(nil)
	want := []string{
		"error: reading failed: retrying until it works: down", "debug: reading still fails",
		"error: reading failed: retrying until it works: down", "info: reading works again",
	}
	if !slices.Equal(got, want) {
		t.Errorf("it logs %q", got)
	}
}
