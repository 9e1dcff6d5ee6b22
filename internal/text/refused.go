package text

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// RefusesRow reports whether a database error may be about some rows of a statement and not about others: Postgres
// refused their content, or a trigger did. Other errors are about the server, the connection, the session,
// the transaction, locks, or the table and the rights to write to it.
func RefusesRow(err error) bool {
	state := SQLState(err)
	if len(state) != 5 || state == NotUTF8 || state == NotReadCommitted {
		return false
	}
	switch state[:2] {
	case "08", "0A", "25", "26", "28", "34", "3D", "3F", "40", "42", "53", "55", "57", "58", "72", "F0", "HV":
		return false
	}
	return true
}

// Constraint returns the name of the constraint that a database error of pgx names, or "".
func Constraint(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.ConstraintName
	}
	return ""
}
