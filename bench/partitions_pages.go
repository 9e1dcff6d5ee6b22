package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const (
	partitionRows = 4_000   // rows per partition
	partitionIDs  = 100_000 // ids per partition: more than a Fetch skips
	anOwner       = "00000000-0000-0000-0000-000000000001"
)

// fetchAtRest is the query of an idle forwarder: the statement, a semicolon and its arguments.
func fetchAtRest() string {
	last := (partitionCount-1)*partitionIDs + 1 + partitionRows // the last id
	list := func(v int) string {
		return "'{" + strings.TrimSuffix(strings.Repeat(fmt.Sprint(v)+",", 64), ",") + "}'"
	}
	return "PREPARE prepared AS " + sqltext.Tables{}.Render(sqltext.FetchApart) + ";" + strings.Join([]string{
		"''", "'" + anOwner + "'", "'{}'", "'{}'", "'{}'", "'{}'", list(1), list(last), list(100), list(100), "'{}'",
		"32768", "8192",
	}, ", ")
}

// settleHundred is the query that settles 100 published messages, in the same form.
func settleHundred() string {
	var ids, none []string
	for i := range 100 {
		ids, none = append(ids, fmt.Sprint((partitionCount-1)*partitionIDs+1000+3*i)), append(none, "x")
	}
	return "PREPARE prepared AS " + sqltext.Tables{}.Render(sqltext.SettlePublished) + ";'{" + strings.Join(ids, ",") +
		"}', '{" + strings.Join(none, ",") + "}', '{life}', 0"
}

// pagesOf counts the pages that a statement visits with a generic plan when all of them are in memory.
func (b *bench) pagesOf(inParts bool, statement func() string) func(context.Context) (measured, error) {
	return func(ctx context.Context) (m measured, err error) {
		size, parts := 0, 0
		if inParts {
			size, parts = partitionIDs, partitionCount+4
		}
		d, err := b.newOutbox(ctx, size, parts)
		if err != nil {
			return m, err
		}
		defer d.drop()
		for i := range partitionCount {
			if _, err = d.pool.Exec(ctx, `SELECT setval('outbox_id_seq', $1::bigint)`, i*partitionIDs+1); err != nil {
				return m, err
			}
			if i < partitionCount-1 {
				err = d.settledLongAgo(ctx, partitionRows)
			} else {
				err = load(ctx, d.pool, 0, partitionRows)
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
		for range 3 { // the first run reads catalogs
			var text []byte
			if err = tx.QueryRow(ctx, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE prepared("+args+")",
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
