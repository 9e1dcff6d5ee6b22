package text

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

type rudeState struct{ error }

func (rudeState) SQLState() string { panic("no state") }

func TestAnErrorThatPanicsIsReplaced(t *testing.T) {
	var noPath *fs.PathError
	var noPg *pgconn.PgError
	plain := errors.New("plain")
	for _, err := range []error{
		noPath, fmt.Errorf("wrapped: %w", noPath), errors.Join(plain, noPath), noPg, rude{}, rudeState{plain},
	} {
		got := SafeError(err)
		if got == nil || !strings.Contains(got.Error(), "panicked when it was inspected") || errors.Is(got, plain) {
			t.Errorf("%T is now %v", err, got)
		}
	}
	for _, err := range []error{plain, fmt.Errorf("wrapped: %w", plain), state("42P01"), nil} {
		if got := SafeError(err); got != err {
			t.Errorf("%v is now %v", err, got)
		}
	}
}
