package services

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// PgBouncer is a connection pooler in transaction mode. Its methods are safe for concurrent use.
type PgBouncer struct {
	*daemon
	url string
}

// packagedPgBouncer is where packages install it, a folder that only root has in its PATH.
var packagedPgBouncer = "/usr/sbin/pgbouncer"

// StartPgBouncer starts PgBouncer in front of the server at postgresURL. Clients reach all of its databases, as the
// user in that URL. It returns [ErrNotInstalled] if there is no pgbouncer program. As root it runs as user postgres or
// else nobody.
//
// In transaction mode a session is not tied to one server connection: session advisory locks and LISTEN do not work,
// and pgx needs QueryExecModeExec or QueryExecModeSimpleProtocol.
func StartPgBouncer(ctx context.Context, postgresURL string, opts Options) (*PgBouncer, error) {
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		if program, err = exec.LookPath(packagedPgBouncer); err != nil {
			return nil, fmt.Errorf("pgbouncer: %w", ErrNotInstalled)
		}
	}
	upstream, err := pgx.ParseConfig(postgresURL)
	if err != nil {
		return nil, fmt.Errorf("start pgbouncer: %w", err)
	}
	as, err := unprivileged()
	if err != nil {
		return nil, fmt.Errorf("start pgbouncer: %w", err)
	}
	f, err := newFolder(as)
	if err != nil {
		return nil, fmt.Errorf("start pgbouncer: %w", err)
	}
	b := &PgBouncer{}
	ini := filepath.Join(f.path, "pgbouncer.ini")
	b.daemon = &daemon{
		name: "pgbouncer", account: as, folder: f, opts: opts,
		stop:    syscall.SIGKILL, // it has no data to lose, and the meaning of its other signals depends on the version
		discard: syscall.SIGKILL,
		prepare: func(context.Context) error { return nil },
		command: func(port int) (*exec.Cmd, error) {
			u := url.URL{Scheme: "postgres", User: url.User(upstream.User), Host: address(port),
				Path: "/" + upstream.Database, RawQuery: "sslmode=disable"}
			b.url = u.String()
			// The file may contain a password. No one else may read the folder.
			if err := os.WriteFile(ini, pgBouncerConfig(upstream, port), 0o600); err != nil {
				return nil, err
			}
			return exec.Command(program, ini), as.own(ini)
		},
		ready: func(ctx context.Context) error {
			if err := b.isOurs(ctx, ini); err != nil {
				return err
			}
			var one int
			return queryRow(ctx, b.url+"&default_query_exec_mode=exec", "select 1", &one)
		},
	}
	if err := b.launch(ctx); err != nil {
		return nil, err
	}
	opts.say("pgbouncer from %s on %s", program, address(b.port))
	return b, nil
}

// URL returns the connection URL of StartPgBouncer's database, through PgBouncer. It stays the same across Restart.
func (b *PgBouncer) URL() string { return b.url }

// Close ends PgBouncer for good. It returns an error if PgBouncer had ended on its own, with the last line of its log.
func (b *PgBouncer) Close() error {
	return errors.Join(b.Crashed(), b.daemon.Close())
}

// Crashed returns an error with the last line of its log if PgBouncer has ended on its own.
func (b *PgBouncer) Crashed() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.process.alive() {
		return nil
	}
	lines := strings.Split(tail(b.logPath()), "\n")
	return fmt.Errorf("PgBouncer ended: %s", lines[len(lines)-1])
}

// isOurs queries the admin console for the path of its configuration.
func (b *PgBouncer) isOurs(ctx context.Context, ini string) error {
	admin := "postgres://admin@" + address(b.port) + "/pgbouncer?sslmode=disable&default_query_exec_mode=simple_protocol"
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	results, err := conn.PgConn().Exec(ctx, "show config").ReadAll()
	if err != nil {
		return err
	}
	for _, result := range results {
		for _, row := range result.Rows {
			if string(row[0]) == "conffile" && string(row[1]) == ini {
				return nil
			}
		}
	}
	return errors.New("another pgbouncer has this port")
}

func pgBouncerConfig(upstream *pgx.ConnConfig, port int) []byte {
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	server := fmt.Sprintf("host=%s port=%d user=%s", quote(upstream.Host), upstream.Port, quote(upstream.User))
	if upstream.Password != "" {
		server += " password=" + quote(upstream.Password)
	}
	return fmt.Appendf(nil, `[databases]
* = %s

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 1000
default_pool_size = 20
`, server, port)
}
