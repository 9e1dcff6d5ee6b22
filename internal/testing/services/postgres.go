package services

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Postgres is a PostgreSQL server. Its methods are safe for concurrent use.
type Postgres struct {
	*daemon
	url string

	mu      sync.Mutex
	created map[string]bool // databases of NewDatabase
	version int             // server_version_num; 0 = not read yet
	idle    *pgx.Conn       // the connection that last created or dropped a database: opening a new one costs as much
}

// StartPostgres starts a server: from OUTBOX_POSTGRES_BIN, otherwise from the highest version installed on the machine,
// otherwise from binaries downloaded once into the user's cache folder. It syncs to disk as in production and accepts
// 200 connections. As root it runs as user postgres or else nobody.
func StartPostgres(ctx context.Context, opts Options) (*Postgres, error) {
	return startPostgres(ctx, opts, func(ctx context.Context, p *Postgres, bin, data string) error {
		initial, err := p.initialData(ctx, bin)
		if err != nil { // for example because there is no cache folder
			return p.initdb(ctx, bin, data)
		}
		return errors.Join(os.CopyFS(data, os.DirFS(initial)), os.Chmod(data, 0o700), p.account.ownAll(data))
	})
}

var initdbArgs = []string{"-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"}

func (p *Postgres) initdb(ctx context.Context, bin, data string) error {
	return p.run(ctx, exec.Command(filepath.Join(bin, "initdb"), append([]string{"-D", data}, initdbArgs...)...))
}

// initialData returns a data folder as initdb leaves it, from the user's cache folder: copying it takes a twentieth of
// the CPU time.
func (p *Postgres) initialData(ctx context.Context, bin string) (string, error) {
	root, err := userCache()
	if err != nil {
		return "", err
	}
	_, version, err := postgresVersion(bin)
	if err != nil {
		return "", err
	}
	origin := sha256.Sum256(fmt.Append(nil, bin, version, initdbArgs))
	return cached(ctx, root, fmt.Sprintf("initdb-%x", origin[:8]), func(dir string) error {
		data := filepath.Join(p.folder.path, "initial")
		defer os.RemoveAll(data)
		if err := p.initdb(ctx, bin, data); err != nil {
			return err
		}
		return os.CopyFS(dir, os.DirFS(data))
	})
}

// run runs a program of the server's, which fills its folder.
func (p *Postgres) run(ctx context.Context, cmd *exec.Cmd) error {
	p.inFolder(cmd)
	if err := runCommand(ctx, cmd); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(cmd.Path), err)
	}
	return nil
}

// startPostgres starts a server with a data folder that fill creates.
func startPostgres(
	ctx context.Context, opts Options, fill func(ctx context.Context, p *Postgres, bin, data string) error,
) (*Postgres, error) {
	bin, version, err := postgresBinaries(ctx)
	if err != nil {
		return nil, fmt.Errorf("find postgres: %w", err)
	}
	as, err := unprivileged()
	if err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	f, err := newFolderIn(tempDir(opts), as)
	if err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	data := filepath.Join(f.path, "data")
	p := &Postgres{}
	p.daemon = &daemon{
		name: "postgres", account: as, folder: f, opts: opts, revive: true,
		stop:    syscall.SIGINT,
		discard: syscall.SIGQUIT,
		prepare: func(ctx context.Context) error { return fill(ctx, p, bin, data) },
		command: func(port int) (*exec.Cmd, error) {
			p.url = "postgres://postgres@" + address(port) + "/postgres?sslmode=disable"
			args := []string{"-D", data, "-p", strconv.Itoa(port), "-k", ""}
			settings := []string{"listen_addresses=127.0.0.1", "fsync=on", "max_connections=200"}
			for _, s := range append(settings, opts.PostgresSettings...) {
				args = append(args, "-c", s)
			}
			return exec.Command(filepath.Join(bin, "postgres"), args...), nil
		},
		ready: func(ctx context.Context) error {
			var dir string
			if err := queryRow(ctx, p.url, "show data_directory", &dir); err != nil {
				return err
			}
			if dir != filepath.ToSlash(data) {
				return errors.New("another postgres has this port")
			}
			return nil
		},
	}
	if err := p.launch(ctx); err != nil {
		return nil, err
	}
	opts.say("%s from %s on %s", version, bin, address(p.port))
	return p, nil
}

// URL returns the connection URL of the server's first database. It stays the same across Restart.
func (p *Postgres) URL() string { return p.url }

// NewDatabase creates an empty database and returns its URL. It lasts until DropDatabase or Close.
func (p *Postgres) NewDatabase(ctx context.Context) (string, error) {
	return p.create(ctx, "template template0")
}

// CopyDatabase creates a copy of a database made by NewDatabase, which must have no connections.
func (p *Postgres) CopyDatabase(ctx context.Context, databaseURL string) (string, error) {
	name, err := p.made(databaseURL)
	if err != nil {
		return "", fmt.Errorf("copy database: %w", err)
	}
	version, err := p.serverVersion(ctx)
	if err != nil {
		return "", fmt.Errorf("copy database: %w", err)
	}
	options := "template " + name
	if version >= 150000 {
		options += " strategy file_copy" // as before 15; several times cheaper if many are created and dropped
	}
	return p.create(ctx, options)
}

func (p *Postgres) serverVersion(ctx context.Context) (version int, err error) {
	p.mu.Lock()
	version = p.version
	p.mu.Unlock()
	if version != 0 {
		return version, nil
	}
	err = queryRow(ctx, p.url, "select current_setting('server_version_num')::int", &version)
	p.mu.Lock()
	p.version = version
	p.mu.Unlock()
	return version, err
}

func (p *Postgres) create(ctx context.Context, options string) (string, error) {
	name := "outbox_" + strings.ToLower(rand.Text()[:16])
	u, err := p.inDatabase(name)
	if err != nil {
		return "", err
	}
	if err := p.exec(ctx, "create database "+name+" "+options); err != nil {
		return "", fmt.Errorf("create database: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.created == nil {
		p.created = map[string]bool{}
	}
	p.created[name] = true
	return u, nil
}

// DropDatabase drops the database of a URL that NewDatabase returned, along with its connections. It saves disk space
// in tests that create many databases; Close drops all of them.
func (p *Postgres) DropDatabase(ctx context.Context, databaseURL string) error {
	name, err := p.made(databaseURL)
	if err != nil {
		return fmt.Errorf("drop database: %w", err)
	}
	if err := p.exec(ctx, "drop database if exists "+name+" with (force)"); err != nil {
		return fmt.Errorf("drop database: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.created, name)
	return nil
}

// made returns the name of a database created here.
func (p *Postgres) made(databaseURL string) (string, error) {
	u, err := url.Parse(databaseURL)
	if err != nil {
		return "", errors.New("not a URL")
	}
	name := strings.TrimPrefix(u.Path, "/")
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.created[name] {
		return "", errors.New("not made by NewDatabase")
	}
	return name, nil
}

// Close ends the server for good and removes its data. Later calls do nothing.
func (p *Postgres) Close() error {
	defer p.forgetIdle()
	return p.daemon.Close()
}

func (p *Postgres) forgetIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.idle != nil {
		closeConn(p.idle)
		p.idle = nil
	}
}

// inDatabase returns the server's URL with another database. The URL may contain a password, so errors omit it.
func (p *Postgres) inDatabase(name string) (string, error) {
	u, err := url.Parse(p.url)
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		return "", errors.New("not of the form postgres://user@host:port/database")
	}
	u.Path = "/" + name
	return u.String(), nil
}

func (p *Postgres) exec(ctx context.Context, sql string) error {
	p.mu.Lock()
	conn := p.idle
	p.idle = nil
	p.mu.Unlock()
	if conn != nil && conn.Ping(ctx) != nil { // the server was restarted
		closeConn(conn)
		conn = nil
	}
	if conn == nil {
		var err error
		if conn, err = pgx.Connect(ctx, p.url); err != nil {
			return err
		}
	}
	_, err := conn.Exec(ctx, sql)
	p.mu.Lock()
	if p.idle == nil && err == nil {
		p.idle, conn = conn, nil
	}
	p.mu.Unlock()
	if conn != nil {
		closeConn(conn)
	}
	return err
}

func queryRow(ctx context.Context, databaseURL, sql string, dest ...any) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	return conn.QueryRow(ctx, sql).Scan(dest...)
}

func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}
