package schema

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/migrations"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

func TestCuresFindTheirStatement(t *testing.T) {
	all, err := migrations.All()
	if err != nil {
		t.Fatal(err)
	}
	c := inspection{names: sqltext.Tables{Schema: "app", Outbox: "box"}, all: all}
	for _, want := range expectedFacts() {
		part := c.names.Render(want.relation)
		switch {
		case want.isRelation() && want.relation != "{migrations}":
			part = " " + strings.ToUpper(want.kind) + " " + part + " "
		case want.kind == "index" && want.state != "unique":
			part = " INDEX " + c.names.Render(want.name) + " "
		default:
			continue
		}
		if got := c.statement(part); !strings.Contains(got, part) {
			t.Errorf("%s: %q", part, got)
		}
	}
}

func TestNormalizedKeepsWhatMatters(t *testing.T) {
	same := [][2]string{
		{"((a IS NULL) AND (b IS NOT NULL))", "a is null and b is not null"},
		{"'{}'::jsonb", "'{}'"},
		{"pg_catalog.clock_timestamp()", "clock_timestamp()"},
	}
	for _, s := range same {
		if normalized(s[0]) != normalized(s[1]) {
			t.Errorf("%q and %q differ", s[0], s[1])
		}
	}
	different := [][2]string{
		{"a IS NULL AND b IS NULL", "a IS NULL OR b IS NULL"},
		{"a IS NULL", "a IS NOT NULL"},
		{"nextval('a'::regclass)", "nextval('b'::regclass)"},
		{"clock_timestamp()", "now()"},
	}
	for _, s := range different {
		if normalized(s[0]) == normalized(s[1]) {
			t.Errorf("%q and %q are normalized to the same text", s[0], s[1])
		}
	}
}

// emptyDatabase reports its server version and has no tables.
type emptyDatabase struct {
	product string
	version int64
	standby bool
	queries int
}

func (e *emptyDatabase) Exec(context.Context, string, ...any) (int64, error) {
	return 0, errors.New("Check changes nothing")
}

func (e *emptyDatabase) Transact(_ context.Context, fn func(drive.Querier) error) error { return fn(e) }

func (e *emptyDatabase) Query(_ context.Context, query string, _ ...any) (drive.Rows, error) {
	e.queries++
	return &serverRow{e, query != sqltext.CheckServer && query != sqltext.CheckProduct}, nil
}

type serverRow struct {
	e    *emptyDatabase
	done bool
}

func (r *serverRow) Next() bool { done := r.done; r.done = true; return !done }
func (r *serverRow) Scan(dest ...any) error {
	if len(dest) == 1 {
		*dest[0].(*string) = r.e.product
		return nil
	}
	*dest[0].(*int64), *dest[1].(*bool), *dest[2].(*string) = r.e.version, r.e.standby, ""
	return nil
}
func (r *serverRow) Err() error   { return nil }
func (r *serverRow) Close() error { return nil }

func checkOf(t *testing.T, q database) error {
	c, err := inspect(t.Context(), q, CheckConfig{}, sqltext.Tables{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return schemaChanged(c.found)
}

func TestCheckOfTheServer(t *testing.T) {
	old := &emptyDatabase{version: 120022}
	err := checkOf(t, old)
	if !errors.Is(err, ErrSchemaChanged) || !strings.Contains(err.Error(), "PostgreSQL 12.22") {
		t.Errorf("old server: %v", err)
	}
	if old.queries != 2 {
		t.Errorf("an old server got %d queries that it may not understand", old.queries)
	}
	err = checkOf(t, &emptyDatabase{version: 150000, standby: true})
	if !errors.Is(err, ErrSchemaChanged) || !strings.Contains(err.Error(), "connect to the primary") {
		t.Errorf("standby: %v", err)
	}
	for product, version := range map[string]string{
		"CockroachDB": "CockroachDB CCL v25.2.1 (x86_64-pc-linux-gnu, built 2025/06/01, go1.23)",
		"YugabyteDB":  "PostgreSQL 15.2-YB-2.25.1.0-b0 on x86_64-pc-linux-gnu",
	} {
		other := &emptyDatabase{product: version, version: 150000}
		err := checkOf(t, other)
		if !errors.Is(err, ErrSchemaChanged) || !strings.Contains(err.Error(), product+") is not PostgreSQL") ||
			other.queries != 1 {
			t.Errorf("%s: %v after %d queries", product, err, other.queries)
		}
	}
}

// TestCheckRefusesARoleWithoutName: no role has an empty name, so nothing would be checked.
func TestCheckRefusesARoleWithoutName(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Check(t.Context(), db, CheckConfig{Roles: []string{"app", ""}})
	if err == nil || !strings.Contains(err.Error(), "CheckConfig.Roles has an empty name") {
		t.Errorf("got %v", err)
	}
}

// TestSettingsPageMarksWhatIsFound: the page marks exactly the settings that Check reads.
func TestSettingsPageMarksWhatIsFound(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "docs", "run", "postgresql.md"))
	if err != nil {
		t.Fatal(err)
	}
	var marked []string
	for _, row := range regexp.MustCompile(`(?m)^\| ✓ ([^|]*)`).FindAllStringSubmatch(string(page), -1) {
		for _, setting := range regexp.MustCompile("`([a-z_]+)(?: = \\w+)?`").FindAllStringSubmatch(row[1], -1) {
			marked = append(marked, setting[1])
		}
	}
	is := judgedNames()
	slices.Sort(is)
	slices.Sort(marked)
	if !slices.Equal(is, marked) {
		t.Errorf("docs/run/postgresql.md marks %v, and Check finds %v", marked, is)
	}
}
