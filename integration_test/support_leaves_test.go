package integration_test

import (
	"context"
	"fmt"
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// intoLeaves makes the outbox of a handle, which is empty, one in partitions: leaves that end below these ids, and a
// default.
func intoLeaves(t testing.TB, h handle, ends ...int64) {
	t.Helper()
	for _, s := range []string{
		`ALTER TABLE outbox RENAME TO plain`,
		`CREATE TABLE outbox (LIKE plain INCLUDING ALL) PARTITION BY RANGE (id)`,
		`ALTER SEQUENCE outbox_id_seq OWNED BY outbox.id`,
		`DROP TABLE plain`,
		`CREATE TABLE outbox_default PARTITION OF outbox DEFAULT WITH (autovacuum_vacuum_threshold = 20000)`,
	} {
		h.exec(t, s)
	}
	from := "MINVALUE"
	for i, end := range ends {
		h.exec(t, fmt.Sprintf(`CREATE TABLE outbox_p%d PARTITION OF outbox FOR VALUES FROM (%s) TO (%d)
			WITH (autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_scale_factor = 0)`, i, from, end))
		from = fmt.Sprint(end)
	}
}

// watchedHandle opens a pgx handle of the same database, whose statements in the simple protocol are shown to a
// function before they are sent and, as soon as the server has them, again; if it returns false the connection is cut.
func watchedHandle(t testing.TB, like handle, see func(statement string, sent bool) bool) handle {
	t.Helper()
	return pgxHandle(t, "watched", like.url, func(cfg *pgxpool.Config) {
		dial := cfg.ConnConfig.DialFunc
		cfg.ConnConfig.RuntimeParams["application_name"] = "watched"
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return &watchedConn{conn, see}, err
		}
	})
}

type watchedConn struct {
	net.Conn
	see func(string, bool) bool
}

func (c *watchedConn) Write(b []byte) (int, error) {
	if len(b) < 6 || b[0] != 'Q' {
		return c.Conn.Write(b)
	}
	statement := string(b[5 : len(b)-1])
	if !c.see(statement, false) {
		_ = c.Conn.Close()
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Write(b)
	if err == nil && !c.see(statement, true) {
		_ = c.Conn.Close()
		return 0, net.ErrClosed
	}
	return n, err
}
