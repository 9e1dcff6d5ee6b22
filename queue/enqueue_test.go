package queue

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// TestRepeatedPauses: a call that failed because of concurrent transactions is repeated after a pause, or they would
// conflict again. The pause ends with the caller's context.
func TestRepeatedPauses(t *testing.T) {
	for name, test := range map[string]struct {
		timeout     time.Duration
		tries       int
		least, most time.Duration
	}{
		"all tries":            {time.Hour, enqueueTries, 50 * time.Millisecond, time.Second},
		"the context ends":     {time.Millisecond, 1, time.Millisecond, time.Millisecond},
		"it has already ended": {0, 1, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), test.timeout)
				defer cancel()
				conflict := &pgconn.PgError{Code: "40001"}
				tries, begun := 0, time.Now()
				err := repeated(ctx, func() error {
					tries++
					return conflict
				})
				took := time.Since(begun)
				if !errors.Is(err, conflict) || tries != test.tries || took < test.least || took > test.most {
					t.Errorf("%d tries in %s: %v", tries, took, err)
				}
				if !errors.Is(err, ctx.Err()) && ctx.Err() != nil {
					t.Errorf("the context ended, and the error hides that: %v", err)
				}
			})
		})
	}
}
