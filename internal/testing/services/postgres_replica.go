package services

import (
	"context"
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
)

// StartReplica starts a read-only server that follows all databases of this one until Promote. Replication is
// asynchronous unless synchronous_standby_names of the primary says otherwise. It returns ErrNotInstalled without
// pg_basebackup next to postgres; a downloaded Postgres lacks it.
func (p *Postgres) StartReplica(ctx context.Context, opts Options) (*Postgres, error) {
	from, err := url.Parse(p.url)
	if err != nil {
		return nil, err // it was generated here, or read before
	}
	bin, _, err := postgresBinaries(ctx)
	if err != nil {
		return nil, fmt.Errorf("find postgres: %w", err)
	}
	if _, err := exec.LookPath(filepath.Join(bin, "pg_basebackup")); err != nil {
		return nil, fmt.Errorf("pg_basebackup: %w", ErrNotInstalled)
	}
	return startPostgres(ctx, opts, func(ctx context.Context, replica *Postgres, bin, data string) error {
		return replica.run(ctx, exec.Command(filepath.Join(bin, "pg_basebackup"),
			"-h", from.Hostname(), "-p", from.Port(), "-U", from.User.Username(),
			"-D", data, "-X", "stream", "-c", "fast", "-R"))
	})
}

// Promote turns a replica into a primary, and returns when it accepts writes. Stop or kill the old primary first;
// otherwise there are two.
func (p *Postgres) Promote(ctx context.Context) error {
	var promoted bool
	if err := queryRow(ctx, p.url, "select pg_promote(true, 10)", &promoted); err != nil {
		return fmt.Errorf("promote: %w", err)
	}
	if !promoted {
		return fmt.Errorf("promote: the server still follows another one after 10 s")
	}
	return nil
}
