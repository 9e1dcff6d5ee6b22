package text

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestRefusesRow(t *testing.T) {
	for state, want := range map[string]bool{
		"23514": true, "P0001": true, "22001": true, "54000": true, "XX001": true, "XX002": true, "XX000": false, "23": false,
		"":      false,
		"57014": false, "40001": false, "40P01": false, "08006": false, "42501": false, LockNotAvailable: false,
		ReadOnlyServer: false, NotUTF8: false, NotReadCommitted: false,
	} {
		if got := RefusesRow(&pgconn.PgError{Code: state}); got != want {
			t.Errorf("%s: %v", state, got)
		}
	}
	for _, e := range []*pgconn.PgError{
		{Code: "42501", Routine: "exec_stmt_raise"}, {Code: "XX000", Routine: "exec_stmt_raise"},
		{Code: "40001", Routine: "exec_stmt_raise"}, {Code: "53400", Routine: "exec_stmt_raise"},
		{Code: "55000", Routine: "exec_stmt_raise"},
		{Code: "42501", Routine: "ExecWithCheckOptions"}, {Code: "42P01", Where: "PL/pgSQL function checks() line 3"},
	} {
		if !RefusesRow(e) {
			t.Errorf("%+v refuses a row", e)
		}
	}
	for _, e := range []*pgconn.PgError{
		{Code: "57014", Where: "PL/pgSQL function checks() line 3"}, {Code: LockNotAvailable, Where: "while locking tuple"},
		{Code: "40P01", Where: "while updating tuple"}, {Code: "53100", Where: "PL/pgSQL function checks() line 3"},
	} {
		if RefusesRow(e) {
			t.Errorf("%+v does not refuse a row", e)
		}
	}
	if RefusesRow(errors.New("the connection broke")) || RefusesRow(nil) {
		t.Error("an error without a SQLSTATE refuses a row")
	}
}
