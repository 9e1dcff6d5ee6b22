package outbox

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/watermill-outbox/schema"
)

// endsConnection says whether an error of the server says nothing about the transaction: after FATAL and PANIC nothing is
// known, whatever the SQLSTATE. A PANIC of COMMIT may come after its record was written, and be recovered. Nor is it after an
// SQLSTATE that means the same.
func endsConnection(err error) bool {
	switch severity(err) {
	case "FATAL", "PANIC":
		return true
	}
	state := schema.SQLState(err)
	return strings.HasPrefix(state, "08") || strings.HasPrefix(state, "57P") || strings.HasPrefix(state, "XX") || state == "40003"
}

// severity of an error of pgx, or of lib/pq, which this module does not import.
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

var errRowsOpen = errors.New("outbox: " + rowsOpen)

// explainBusy says what to close when a connection is in the middle of an answer. Of pgx and lib/pq there is no other sign
// than the text; pgx's driver for database/sql says the same of a connection that is gone.
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
