package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const (
	leafRows = 4_000   // that are in one
	leafIDs  = 100_000 // that it may have: more than a Fetch passes by
	anOwner  = "00000000-0000-0000-0000-000000000001"
)

// fetchAtRest is what a forwarder asks when there is nothing to do: the statement, a semicolon, and its arguments.
func fetchAtRest() string {
	last := (leafCount-1)*leafIDs + 1 + leafRows // the last id
	list := func(v int) string {
		return "'{" + strings.TrimSuffix(strings.Repeat(fmt.Sprint(v)+",", 64), ",") + "}'"
	}
	return "PREPARE looked AS " + sqltext.Tables{}.Render(sqltext.FetchApart) + ";" + strings.Join([]string{
		"''", "'" + anOwner + "'", "'{}'", "'{}'", "'{}'", "'{}'", list(1), list(last), list(100), list(100), "'{}'",
		"32768", "8192",
	}, ", ")
}

// settleHundred is the same of 100 messages that were published.
func settleHundred() string {
	var ids, none []string
	for i := range 100 {
		ids, none = append(ids, fmt.Sprint((leafCount-1)*leafIDs+1000+3*i)), append(none, "x")
	}
	return "PREPARE looked AS " + sqltext.Tables{}.Render(sqltext.SettlePublished) + ";'{" + strings.Join(ids, ",") +
		"}', '{" + strings.Join(none, ",") + "}', '{life}', 0"
}

// pagesOf counts the pages that a statement visits with a plan for any arguments, when all that it needs is in memory.
func (b *bench) pagesOf(leaf bool, statement func() string) func(context.Context) (measured, error) {
	return func(ctx context.Context) (m measured, err error) {
		size, leaves := 0, 0
		if leaf {
			size, leaves = leafIDs, leafCount+4
		}
		d, err := b.newOutbox(ctx, size, leaves)
		if err != nil {
			return m, err
		}
		defer d.drop()
		for i := range leafCount {
			if _, err = d.pool.Exec(ctx, `SELECT setval('outbox_id_seq', $1::bigint)`, i*leafIDs+1); err != nil {
				return m, err
			}
			if i < leafCount-1 {
				err = d.settledLongAgo(ctx, leafRows)
			} else {
				err = load(ctx, d.pool, 0, leafRows)
			}
			if err != nil {
				return m, err
			}
		}
		for _, s := range []string{
			`INSERT INTO outbox_lanes (scope, lane, owner, epoch)
				SELECT '', l, '` + anOwner + `', 1 FROM generate_series(0, 63) l`,
			`INSERT INTO outbox_life DEFAULT VALUES`, `VACUUM (ANALYZE)`,
		} {
			if _, err = d.pool.Exec(ctx, s); err != nil {
				return m, err
			}
		}
		tx, err := d.pool.Begin(ctx)
		if err != nil {
			return m, err
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
		var life string
		if err = tx.QueryRow(ctx, sqltext.Tables{}.Render("SELECT {life}")).Scan(&life); err != nil {
			return m, err
		}
		prepare, args, _ := strings.Cut(strings.ReplaceAll(statement(), "{life}", life), ";")
		for _, s := range []string{
			"SET LOCAL plan_cache_mode = force_generic_plan", "SET LOCAL enable_seqscan = off", prepare,
		} {
			if _, err = tx.Exec(ctx, s, pgx.QueryExecModeSimpleProtocol); err != nil {
				return m, err
			}
		}
		for range 3 { // the first reads catalogs
			var text []byte
			if err = tx.QueryRow(ctx, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE looked("+args+")",
				pgx.QueryExecModeSimpleProtocol).Scan(&text); err != nil {
				return m, err
			}
			var root []struct {
				Plan struct {
					Hit  float64 `json:"Shared Hit Blocks"`
					Read float64 `json:"Shared Read Blocks"`
				}
			}
			if err = json.Unmarshal(text, &root); err != nil {
				return m, err
			}
			m.value = root[0].Plan.Hit + root[0].Plan.Read
		}
		return m, nil
	}
}

// leafLocked measures how long a leaf is locked that keeps as many messages as it may.
func (b *bench) leafLocked(ctx context.Context) (string, error) {
	const size = 20_000
	d, err := b.newOutbox(ctx, size, 9)
	if err != nil {
		return "", err
	}
	defer d.drop()
	if err = d.settledLongAgo(ctx, size+1); err != nil {
		return "", err
	}
	if _, err = d.pool.Exec(ctx, `UPDATE outbox SET published_at = NULL, dead_at = now()
		WHERE id % 20 = 1 AND id <= 20000`); err != nil {
		return "", err
	}
	cfg, err := pgxpool.ParseConfig(d.url)
	if err != nil {
		return "", err
	}
	clock := &lockClock{}
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return &lockedConn{Conn: conn, clock: clock}, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return "", err
	}
	defer pool.Close()
	watched, err := open(d.url, pool)
	if err != nil {
		return "", err
	}
	a, err := admin.New(watched.db, admin.Config{Actor: "bench"}, nil)
	if err != nil {
		return "", err
	}
	r, err := a.RollOutbox(ctx, admin.RollConfig{Retention: 24 * time.Hour})
	if err != nil {
		return "", err
	}
	if r.PutBack != 1000 || clock.longest == 0 {
		return "", fmt.Errorf("%d messages were put back instead of 1,000: %+v", r.PutBack, r.Leaves)
	}
	return clock.longest.Round(100*time.Microsecond).String() + " for a leaf of which 1,000 messages are put back", nil
}

// lockClock knows for how long locks were held, from the request for them to the answer to their COMMIT.
type lockClock struct{ longest time.Duration }

type lockedConn struct {
	net.Conn
	clock *lockClock
	asked time.Time
	ends  bool
}

func (c *lockedConn) Write(p []byte) (int, error) {
	if len(p) > 6 && p[0] == 'Q' {
		switch s := string(p[5:]); {
		case strings.Contains(s, "IN ACCESS EXCLUSIVE MODE NOWAIT"):
			c.asked = time.Now()
		case strings.HasPrefix(s, "ROLLBACK"):
			c.asked = time.Time{}
		case strings.HasPrefix(s, "COMMIT"):
			c.ends = !c.asked.IsZero()
		}
	}
	return c.Conn.Write(p)
}

func (c *lockedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.ends {
		c.clock.longest = max(c.clock.longest, time.Since(c.asked))
		c.ends, c.asked = false, time.Time{}
	}
	return n, err
}
