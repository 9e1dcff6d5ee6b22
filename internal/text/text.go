// Package text explains errors for the packages of this module, and checks what Postgres text can hold.
package text

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// SQLState returns the SQLSTATE of a database error of pgx or lib/pq, or "" if err carries none.
func SQLState(err error) string {
	var e interface{ SQLState() string }
	if errors.As(err, &e) {
		return e.SQLState()
	}
	return ""
}

// explained is an error with a cure added by Explain.
type explained struct{ error }

func (e explained) Unwrap() error { return e.error }

// Explain adds the cure to the error of a database that is not migrated, denies a right to the role, or is read-only.
// It returns other errors, and errors that already have a cure, unchanged.
func Explain(err error) error {
	if !HasCure(err) || errors.As(err, new(explained)) {
		return err
	}
	switch SQLState(err) {
	case InsufficientPrivilege:
		err = fmt.Errorf("%w (schema.Check lists the GRANT statements that the role of this connection needs)", err)
	case ReadOnlyServer:
		err = fmt.Errorf("%w (connect to the primary, by target_session_attrs=read-write, unless the transaction is "+
			"read-only, or the role or the database has default_transaction_read_only = on: RESET it)", err)
	case NotUTF8:
		err = fmt.Errorf(
			"client_encoding of the session is not UTF8, so the server would alter topics, keys and metadata: "+
				"ALTER ROLE ... RESET client_encoding, or add client_encoding=UTF8 to the connection string: %w", err)
	case NotReadCommitted:
		err = fmt.Errorf("a statement did not run as READ COMMITTED, which the order of messages depends on: "+
			"ALTER ROLE ... RESET default_transaction_isolation: %w", err)
	default:
		err = fmt.Errorf("%w (run schema.Migrate with the same Tables, or check them and the search_path)", err)
	}
	return explained{err}
}

// HasCure reports whether Explain has a cure for an error.
func HasCure(err error) bool {
	switch SQLState(err) {
	case UndefinedTable, "3F000", UndefinedColumn, InsufficientPrivilege, ReadOnlyServer, NotUTF8, NotReadCommitted:
		return true
	}
	return false
}

// ErrNotStored is outbox.ErrNotStored.
var ErrNotStored = errors.New("outbox: the database accepted the insert and stored fewer rows: " +
	"drop the BEFORE INSERT trigger that returns NULL, or the rule, on the table: schema.Check names it")

// Stored returns ErrNotStored for an insert that found its rows missing or that a rule on the table forbids; other
// errors are explained as by Explain.
func Stored(err error) error {
	switch SQLState(err) {
	case RowsMissing, "0A000":
		return fmt.Errorf("%w: %w", ErrNotStored, err)
	}
	return Explain(err)
}

// SQLSTATEs.
const (
	InsufficientPrivilege = "42501"
	UndefinedObject       = "42704" // for example a constraint
	UndefinedTable        = "42P01"
	UndefinedColumn       = "42703"
	LockNotAvailable      = "55P03" // NOWAIT, or a lock_timeout
	ReadOnlyServer        = "25006" // a write reached a standby, or a primary that was demoted
	NotUTF8               = "2201E" // from statements of package sqltext whose texts would be converted
	RowsMissing           = "2201W" // from inserts that did not store all rows
	NotReadCommitted      = "2201F" // from statements that must run in a READ COMMITTED transaction but did not
)

// Storable reports whether Postgres text, and JSON in it, keeps the string unchanged.
func Storable(s string) bool {
	return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0
}

// Valid replaces bytes that Postgres text cannot hold.
func Valid(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// MaxErrorBytes is the maximum size of a stored error.
const MaxErrorBytes = 1024

// Maximum sizes of the actor and the reason in the audit log.
const (
	MaxActorBytes  = 255
	MaxReasonBytes = 1024
)

// OfError returns the text of an error as it is stored, without its secrets. The Error method of a user's error may
// panic.
func OfError(err error) (s string) {
	defer func() {
		if p := recover(); p != nil {
			s = fmt.Sprintf("an error of type %T, whose Error panicked", err)
		}
	}()
	return Cut(Redact(Valid(err.Error())), MaxErrorBytes)
}

// Cut returns at most limit bytes of a valid text, with an ellipsis if it is longer.
func Cut(s string, limit int) string {
	const more = "…"
	if len(s) <= limit {
		return s
	}
	if limit < len(more) {
		return ""
	}
	return strings.ToValidUTF8(s[:limit-len(more)], "") + more
}

// Advise replaces the text of an error. errors.Is still matches it.
func Advise(err error, format string, args ...any) error {
	return advised{fmt.Sprintf(format, args...), err}
}

type advised struct {
	text string
	err  error
}

func (e advised) Error() string { return e.text }
func (e advised) Unwrap() error { return e.err }
