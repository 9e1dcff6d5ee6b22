package integration_test

import (
	"fmt"
	"testing"
)

// cutOutbox makes the outbox of a handle, which is empty, one in partitions that end at these ids, and a default one.
func cutOutbox(t testing.TB, h handle, ends ...int64) {
	t.Helper()
	for _, s := range []string{
		"ALTER TABLE outbox RENAME TO plain",
		"CREATE TABLE outbox (LIKE plain INCLUDING ALL) PARTITION BY RANGE (id)",
		"ALTER SEQUENCE outbox_id_seq OWNED BY outbox.id",
		"DROP TABLE plain",
		"CREATE TABLE outbox_default PARTITION OF outbox DEFAULT",
	} {
		h.exec(t, s)
	}
	from := "MINVALUE"
	for i, end := range ends {
		h.exec(t, fmt.Sprintf("CREATE TABLE outbox_p%d PARTITION OF outbox FOR VALUES FROM (%s) TO (%d)", i, from, end))
		from = fmt.Sprint(end)
	}
}
