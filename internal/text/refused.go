package text

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// RefusesRow reports whether a database error may be due to one of many rows: a constraint or a trigger refuses it. Lost
// connections, time-outs, locks, missing tables and privileges, deadlocks and full disks are not.
func RefusesRow(err error) bool {
	state := SQLState(err)
	switch state {
	case NotUTF8, RowsMissing, NotReadCommitted, LockNotAvailable:
		return false
	}
	if len(state) < 2 {
		return false
	}
	switch state[:2] {
	case "08", "25", "28", "3D", "3F", "40", "42", "53", "57", "58":
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
