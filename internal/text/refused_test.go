package text

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestRefusesRow(t *testing.T) {
	for state, want := range map[string]bool{
		"23514": true, "P0001": true, "22001": true, "54000": true, "XX001": true, "23": false, "": false,
		"57014": false, "40001": false, "40P01": false, "08006": false, "42501": false, LockNotAvailable: false,
		ReadOnlyServer: false, NotUTF8: false, NotReadCommitted: false,
	} {
		if got := RefusesRow(&pgconn.PgError{Code: state}); got != want {
			t.Errorf("%s: %v", state, got)
		}
	}
	if RefusesRow(errors.New("the connection broke")) || RefusesRow(nil) {
		t.Error("an error without a SQLSTATE refuses a row")
	}
}
