package trouble

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

// lines records log lines with their level.
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
	l := RetryLog{Logger: lines{all: &got}, What: "reading"}
	down := errors.New("down")
	l.Report(nil)
	l.Report(context.Canceled)
	l.Report(down)
	l.Report(down)
	l.Report(fmt.Errorf("read: %w", context.Canceled))
	l.last = l.last.Add(-interval - time.Second)
	l.Report(down)
	l.Report(nil)
	l.Report(nil)
	l.Report(down)
	l.Report(&pgconn.PgError{Code: text.NotReadCommitted})
	l.Report(&pgconn.PgError{Code: text.NotReadCommitted})
	l.Report(down)
	for i, line := range got {
		if _, cure, ok := strings.Cut(line, "ALTER ROLE ... RESET default_transaction_isolation"); ok {
			got[i] = strings.TrimSuffix(line, cure)
			got[i] = got[i][strings.Index(got[i], "ALTER"):]
		}
	}
	want := []string{
		"error: reading failed: retrying until it works: down", "debug: reading still fails",
		"error: reading failed: retrying until it works: down", "info: reading works again",
		"error: reading failed: retrying until it works: down", "ALTER ROLE ... RESET default_transaction_isolation",
		"debug: reading still fails", "debug: reading still fails",
	}
	if !slices.Equal(got, want) {
		t.Errorf("it logs %q", got)
	}
}
