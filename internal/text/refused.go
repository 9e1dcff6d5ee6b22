package text

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// RefusesRow reports whether only some rows of a statement may have caused an error: Postgres or a trigger refused
// their content. Other errors concern the server, the connection, the session, the transaction, locks, or the table and
// the rights to write to it.
func RefusesRow(err error) bool {
	state := SQLState(err)
	if len(state) != 5 || state == NotUTF8 || state == NotReadCommitted {
		return false
	}
	if routine := field(err, 'R'); routine == "exec_stmt_raise" || routine == "ExecWithCheckOptions" {
		return true // RAISE of PL/pgSQL, with any code; a policy
	}
	if state == "XX000" { // internal errors; XX001 and XX002 are damaged rows and indexes
		return false
	}
	switch state[:2] {
	case "08", "28", "3D", "40", "53", "57", "58":
		return false
	case "0A", "25", "26", "34", "3F", "42", "55", "72", "F0", "HV":
		return state != LockNotAvailable && field(err, 'W') != "" // in a function, so from a trigger or a check
	}
	return true
}

// Constraint returns the name of the constraint that a database error names, or "".
func Constraint(err error) string { return field(err, 'n') }

// field returns a field of a database error of pgx or lib/pq by its letter in the protocol, or "".
func field(err error, letter byte) string {
	if e := (interface{ Get(byte) string })(nil); errors.As(err, &e) {
		return e.Get(letter)
	}
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return ""
	}
	switch letter {
	case 'W':
		return e.Where
	case 'R':
		return e.Routine
	}
	return e.ConstraintName
}
