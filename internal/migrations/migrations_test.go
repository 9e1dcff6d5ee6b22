package migrations

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

func use(t *testing.T, files fstest.MapFS) {
	t.Helper()
	was := FS
	FS = files
	t.Cleanup(func() { FS = was })
}

func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }

func TestFiles(t *testing.T) {
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range all {
		if m.Version != i+1 {
			t.Errorf("migration %d is %s", i+1, m)
		}
		for _, s := range m.Statements() {
			if strings.Contains(s, "CONCURRENTLY") {
				t.Errorf("%s cannot run in a transaction: %s", m, s)
			}
		}
	}
}

func TestBadFilesAreRefused(t *testing.T) {
	for _, name := range []string{"1_a.sql", "0002_a.sql", "0001_A.sql", "0001_a'b.sql", "0001_a.concurrent.sql"} {
		use(t, fstest.MapFS{name: file("select 1")})
		if _, err := All(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStatements(t *testing.T) {
	m := Migration{
		Text: "-- first; one\nCREATE TABLE a (\n    b text DEFAULT ';--' -- why;\n);\n\n-- last\nINSERT INTO \"a;\" VALUES " +
			"('it''s; so');\n-- end",
	}
	want := []string{"CREATE TABLE a (\n    b text DEFAULT ';--' \n)", "INSERT INTO \"a;\" VALUES ('it''s; so')"}
	if got := m.Statements(); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestChecksumIsOfStatements(t *testing.T) {
	sum := func(text string) string { return Migration{Text: text}.Checksum() }
	const text = "CREATE TABLE a (b text DEFAULT 'x  y');\nCREATE INDEX c ON a (b);\n"
	for _, same := range []string{
		"-- a comment\n" + text,
		strings.ReplaceAll(text, "(b text", "(\n\t\tb   text -- of b;\n"),
		strings.ReplaceAll(text, "\n", "\r\n"),
		strings.ReplaceAll(text, "CREATE", "create"),
		text + ";\n",
	} {
		if sum(same) != sum(text) {
			t.Errorf("the checksum differs: %q", same)
		}
	}
	for _, other := range []string{
		strings.ReplaceAll(text, "'x  y'", "'x y'"),
		strings.ReplaceAll(text, "'x  y'", "'X  Y'"),
		strings.ReplaceAll(text, "text", "varchar"),
		strings.ReplaceAll(text, ");\nC", ") C"),
		text[:20],
	} {
		if sum(other) == sum(text) {
			t.Errorf("the checksum is the same: %q", other)
		}
	}
}
