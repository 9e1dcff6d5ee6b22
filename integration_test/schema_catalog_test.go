package integration_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/migrations"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

var creates = regexp.MustCompile(`CREATE (?:UNLOGGED )?(TABLE|SEQUENCE|INDEX) (\{\w+\})`)

// TestCatalog compares schema/catalog.txt, which Check compares databases with, with what Migrate makes. With
// OUTBOX_WRITE_CATALOG=1 it writes the file.
func TestCatalog(t *testing.T) {
	needsPlainOutbox(t)
	t.Parallel()
	all, err := migrations.All()
	require.NoError(t, err)
	relations, placeholders := []string{}, map[string]string{`"outbox_migrations"`: "{migrations}"}
	for _, m := range all {
		for _, made := range creates.FindAllStringSubmatch(m.Text, -1) {
			placeholders[sqltext.Tables{}.Render(made[2])] = made[2]
			if made[1] != "INDEX" {
				relations = append(relations, sqltext.Tables{}.Render(made[2]))
			}
		}
	}
	relations = append(relations, `"outbox_migrations"`)
	var lines []string
	h := newPgxHandle(t, newMigratedDatabase(t))
	err = drive.Collect(t.Context(), (*core.DB)(h.db), func(rows drive.Rows) error {
		var f [6]string
		if err := rows.Scan(&f[0], &f[1], &f[2], &f[3], &f[4], &f[5]); err != nil {
			return err
		}
		if f[1] == "table" || f[1] == "sequence" {
			f[2] = ""
		}
		if index := placeholders[sqltext.Quote(f[2])]; f[1] == "index" && index != "" {
			f[2] = index
		}
		f[0] = placeholders[f[0]]
		for _, seq := range []string{"outbox_id_seq", "inbox_queue_id_seq"} {
			f[5] = strings.ReplaceAll(f[5], "'"+seq+"'", "'"+placeholders[sqltext.Quote(seq)]+"'")
		}
		f[5] = strings.Join(strings.Fields(f[5]), " ")
		lines = append(lines, strings.Join(f[:], " | "))
		return nil
	}, sqltext.CheckCatalog, relations)
	require.NoError(t, err)
	kinds := []string{"sequence", "table", "column", "index"}
	place := func(line string) (int, int, string) {
		f := strings.Split(line, " | ")
		relation := slices.Index(relations, sqltext.Tables{}.Render(f[0]))
		if f[1] == "sequence" {
			relation -= len(relations)
		}
		return relation, slices.Index(kinds, f[1]), f[2]
	}
	slices.SortFunc(lines, func(a, b string) int {
		ar, ak, an := place(a)
		br, bk, bn := place(b)
		if ar != br {
			return ar - br
		}
		if ak != bk {
			return ak - bk
		}
		return strings.Compare(an, bn)
	})
	is := strings.Join(lines, "\n") + "\n"
	const file = "../schema/catalog.txt"
	if os.Getenv("OUTBOX_WRITE_CATALOG") != "" {
		require.NoError(t, os.WriteFile(file, []byte(is), 0o644))
		return
	}
	was, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(was), is, "run with OUTBOX_WRITE_CATALOG=1")
}
