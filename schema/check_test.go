package schema

import (
	"strings"
	"testing"
)

func TestCuresFindTheirStatement(t *testing.T) {
	c := inspection{names: Names{Schema: "app", Outbox: "box"}}
	for _, prefix := range []string{
		"CREATE SEQUENCE {outbox_id_seq} ", "CREATE TABLE {outbox} ", "CREATE TABLE {lanes} ", "CREATE TABLE {forwarders} ", "CREATE TABLE {inbox} ",
		"CREATE INDEX {outbox_ready} ", "CREATE INDEX {outbox_waiting} ", "CREATE INDEX {outbox_dead} ", "CREATE INDEX {inbox_processed} ",
	} {
		prefix = c.names.Render(prefix)
		if got := c.statement(prefix); !strings.HasPrefix(got, prefix) {
			t.Errorf("%s: %q", prefix, got)
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
			t.Errorf("%q and %q come out alike", s[0], s[1])
		}
	}
}
