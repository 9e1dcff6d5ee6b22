package drive

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// Package outbox exports and documents the first three.
var (
	ErrCommitUnknown = errors.New("outbox: the outcome of COMMIT is unknown")
	ErrTxEnded       = errors.New("outbox: the transaction was ended inside the function that InTx runs: " +
		"leave COMMIT and ROLLBACK to InTx, return an error to roll back; RESET ALL looks the same")
	ErrTxManaged = errors.New("outbox: this transaction is committed by the code that began it: return nil to commit, " +
		"an error to roll back")

	// ErrNoListen is returned if notifications cannot arrive: with database/sql, and behind a pooler such as PgBouncer,
	// whose sessions are not tied to a connection.
	// Cause: the handle is of database/sql, or behind a pooler.
	// Cure: for less delay, use pgx without a pooler.
	ErrNoListen = errors.New("outbox: no notifications on this connection: forwarders poll")

	// errAborted is the error of a commit to which Postgres would reply with ROLLBACK.
	// Cause: a failed statement aborts the transaction.
	// Cure: return the statement's error.
	errAborted = fmt.Errorf("outbox: a statement of the transaction failed and its error was ignored: %w",
		pgx.ErrTxCommitRollback)
)

// ReadOnlyServer is the SQLSTATE of a write on a standby, or on a primary that was demoted.
const ReadOnlyServer = text.ReadOnlyServer

// Checked translates the errors of a statement in our transaction.
func Checked(ctx context.Context, err error) error {
	switch text.SQLState(err) {
	case sqltext.NotMarked:
		return ErrTxEnded
	case "25P02":
		return fmt.Errorf("%w: %w", errAborted, err)
	}
	switch { // database/sql rolls back when the context ends
	case !errors.Is(err, sql.ErrTxDone):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fmt.Errorf("%w: %w", ErrTxEnded, err)
}

// committed returns ErrCommitUnknown if ctx ended before COMMIT succeeded. The driver may have asked the server to
// cancel COMMIT, and a server that was waiting for a synchronous standby then stops waiting and reports success. lib/pq
// asks for this, and so does pgx with its CancelRequestContextWatcherHandler.
func committed(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return fmt.Errorf("%w: it may not be on the standby: %w", ErrCommitUnknown, ctx.Err())
}

// endsConnection reports whether an error of the server leaves the state of the transaction unknown: FATAL, PANIC, or
// an SQLSTATE with the same meaning. COMMIT may PANIC after its record was written, and recovery may then commit it.
func endsConnection(err error) bool {
	switch severity(err) {
	case "FATAL", "PANIC":
		return true
	}
	state := text.SQLState(err)
	return strings.HasPrefix(state, "08") || strings.HasPrefix(state, "57P") || strings.HasPrefix(state, "XX") ||
		state == "40003"
}

// severity returns the severity of an error of pgx, or of lib/pq, which this module does not import.
func severity(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		if pgErr.SeverityUnlocalized != "" {
			return pgErr.SeverityUnlocalized
		}
		return pgErr.Severity
	}
	var other interface {
		error
		SQLState() string
	}
	if !errors.As(err, &other) {
		return ""
	}
	v := reflect.Indirect(reflect.ValueOf(other))
	if v.Kind() != reflect.Struct {
		return ""
	}
	if s := v.FieldByName("Severity"); s.Kind() == reflect.String {
		return s.String()
	}
	return ""
}

const rowsOpen = "the rows of a query in this transaction are still open: read them to the end or close them " +
	"(rows.Close, BatchResults.Close) before the next statement and before the handler returns"

// Cause: a query of the transaction still has rows to read.
// Cure: read rows to the end or close them before the next statement.
var errRowsOpen = errors.New("outbox: " + rowsOpen)

// explainBusy adds which rows to close if a connection still has unread results. Only the texts of pgx and lib/pq show
// that; pgx's driver for database/sql reports a lost connection with the same text.
func explainBusy(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, driver.ErrBadConn):
		return fmt.Errorf("%w: the connection is gone, or %s", err, rowsOpen)
	case strings.Contains(err.Error(), "conn busy"), strings.Contains(err.Error(), "already a query being processed"):
		return fmt.Errorf("%w: %s", err, rowsOpen)
	}
	return err
}
