package schema

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

func (c *inspection) server(ctx context.Context) error {
	if err := genuine(ctx, c.q); err != nil {
		if !errors.Is(err, errOtherProduct) {
			return err
		}
		c.problem("server", "use PostgreSQL 13 or newer", "%s", err)
		c.stop = true
		return nil
	}
	return drive.Collect(ctx, c.q, func(rows drive.Rows) error {
		var version int64
		var standby bool
		var settings string
		if err := rows.Scan(&version, &standby, &settings); err != nil {
			return err
		}
		c.unusualSettings = hasUnusualSettings(strings.Split(settings, "|"))
		if version < 130000 {
			c.problem("server", "use PostgreSQL 13 or newer", "is PostgreSQL %d.%d", version/10000, version%10000)
			c.stop = true
		}
		if c.standby = standby; standby {
			c.problem("server", "connect to the primary (target_session_attrs=read-write)", "is a standby, which is read-only")
		}
		return nil
	}, sqltext.CheckServer, judgedNames())
}

// Cause: another product that speaks PostgreSQL's protocol.
// Cure: use PostgreSQL.
var errOtherProduct = errors.New("is not PostgreSQL, though it speaks its protocol: pg_current_snapshot does not " +
	"list the transactions in progress there, so messages could be lost or overtaken")

// genuine returns errOtherProduct if the server only speaks PostgreSQL's protocol.
func genuine(ctx context.Context, q drive.Querier) error {
	var version string
	if err := drive.Collect(ctx, q, func(rows drive.Rows) error {
		return rows.Scan(&version)
	}, sqltext.CheckProduct); err != nil {
		return err
	}
	for mark, product := range map[string]string{
		"CockroachDB": "CockroachDB", "-YB-": "YugabyteDB", "Redshift": "Amazon Redshift", "Greenplum": "Greenplum",
	} {
		if strings.Contains(version, mark) {
			return fmt.Errorf("(%s) %w", product, errOtherProduct)
		}
	}
	return nil
}

func (c *inspection) whoAsks(ctx context.Context) error {
	return drive.Collect(ctx, c.q, func(rows drive.Rows) error {
		usable := false
		if err := rows.Scan(&c.role, &usable, new(string)); err != nil {
			return err
		}
		if !usable {
			name := sqltext.Quote(c.names.Schema)
			c.stop, c.damaged = true, true
			c.add(Problem{
				Object: "schema " + name, Found: "denies USAGE to role " + sqltext.Quote(c.role), Role: c.role,
				Cure: fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s", name, sqltext.Quote(c.role)),
			})
		}
		return nil
	}, sqltext.CheckRole, c.names.Schema)
}
