package demo

import (
	"context"
	"fmt"
	"net/url"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/watermill-outbox/schema"
)

// logins makes a login for the service, which books, publishes and forwards, and one for a process that forwards only,
// and returns their URLs. Neither may do more than that: see docs/run/roles.sql.
func logins(ctx context.Context, owner *pgxpool.Pool, database, run string) (service, forwarder string, err error) {
	roles, err := schema.Roles(schema.RolesConfig{Prefix: run + "_"})
	if err != nil {
		return "", "", err
	}
	conn, err := owner.Acquire(ctx)
	if err != nil {
		return "", "", err
	}
	defer conn.Release()
	_, err = conn.Conn().PgConn().Exec(ctx, roles+fmt.Sprintf(`
create role %[1]s_service login in role "%[1]s_writer", "%[1]s_forwarder";
grant select, insert, update on accounts, bookings to %[1]s_service;
create role %[1]s_sender login in role "%[1]s_forwarder";`, run)).ReadAll()
	if err != nil {
		return "", "", fmt.Errorf("make roles: %w", err)
	}
	as := func(role string) string {
		u, _ := url.Parse(database) // a valid URL: see withPoolSize
		u.User = url.User(run + "_" + role)
		return u.String()
	}
	return as("service"), as("sender"), nil
}
