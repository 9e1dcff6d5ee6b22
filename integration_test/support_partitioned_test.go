package integration_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// intoPartitions partitions the empty outbox of a handle, with partitions that end below these ids, and a default.
func intoPartitions(t testing.TB, h handle, ends ...int64) {
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

// watchedHandle opens a pgx handle on the same database and calls see for each statement, in both protocols: before it
// is sent and as soon as the server has it. If see returns false, the connection is cut.
func watchedHandle(t testing.TB, like handle, see func(statement string, sent bool) bool) handle {
	t.Helper()
	return pgxHandle(t, "watched", like.url, func(cfg *pgxpool.Config) {
		dial := cfg.ConnConfig.DialFunc
		cfg.ConnConfig.RuntimeParams["application_name"] = "watched"
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return &watchedConn{Conn: conn, see: see, prepared: map[string]string{}}, err
		}
	})
}

type watchedConn struct {
	net.Conn
	see      func(string, bool) bool
	prepared map[string]string // statements by their names on the server
}

func (c *watchedConn) Write(b []byte) (int, error) {
	statements := c.statements(b)
	for _, s := range statements {
		if !c.see(s, false) {
			_ = c.Conn.Close()
			return 0, net.ErrClosed
		}
	}
	n, err := c.Conn.Write(b)
	for _, s := range statements {
		if err == nil && !c.see(s, true) {
			_ = c.Conn.Close()
			return 0, net.ErrClosed
		}
	}
	return n, err
}

// statements returns the statements that a write of whole messages makes the server execute. A Bind stands for the
// Execute that follows it. Other data, such as the start of the connection or a COPY, contains no statements.
func (c *watchedConn) statements(b []byte) (list []string) {
	for len(b) >= 5 {
		size := int(binary.BigEndian.Uint32(b[1:])) + 1
		if size < 5 || size > len(b) {
			return list
		}
		body := strings.Split(string(b[5:size]), "\x00")
		switch {
		case b[0] == 'Q':
			list = append(list, body[0])
		case b[0] == 'P' && len(body) > 1:
			c.prepared[body[0]] = body[1]
		case b[0] == 'B' && len(body) > 1:
			list = append(list, c.prepared[body[1]])
		}
		b = b[size:]
	}
	return list
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
