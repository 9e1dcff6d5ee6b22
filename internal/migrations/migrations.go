// Package migrations holds the text of the migrations, numbered without gaps.
//
// A file NNNN_name.sql is run in a transaction, together with its neighbours. The statements of a file
// NNNN_name.concurrent.sql are run one by one outside of any transaction, and may have to be run again after a
// failure, so each must be one of
//
//	CREATE [UNIQUE] INDEX CONCURRENTLY {index} ON {table} ...
//	DROP INDEX CONCURRENTLY IF EXISTS {index}
//	VACUUM, ANALYZE, or ALTER TABLE ... VALIDATE CONSTRAINT
//
// Nothing that comes later may rely on a concurrent file: a deployment may put it off.
package migrations

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"sync"
)

//go:embed *.sql
var embedded embed.FS

// FS holds the files. Tests replace it to try what no released migration has.
var FS fs.FS = embedded

// Migration is one file.
type Migration struct {
	Version    int
	Name       string
	Concurrent bool
	Text       string // with placeholders for the names
}

var fileName = regexp.MustCompile(`^(\d{4})_([a-z0-9_]+)(\.concurrent)?\.sql$`)

// All returns the migrations in order.
func All() ([]Migration, error) {
	entries, err := fs.ReadDir(FS, ".") // sorted by name
	if err != nil {
		return nil, err
	}
	var all []Migration
	for _, e := range entries {
		parts := fileName.FindStringSubmatch(e.Name())
		if parts == nil {
			return nil, fmt.Errorf("migration file %s: its name is not of the form 0001_name.sql or 0001_name.concurrent.sql",
				e.Name())
		}
		text, err := fs.ReadFile(FS, e.Name())
		if err != nil {
			return nil, err
		}
		m := Migration{Name: parts[2], Concurrent: parts[3] != "", Text: string(text)}
		if _, err := fmt.Sscanf(parts[1], "%d", &m.Version); err != nil || m.Version != len(all)+1 {
			return nil, fmt.Errorf("migration file %s: its version is not %04d", e.Name(), len(all)+1)
		}
		all = append(all, m)
	}
	return all, nil
}

// String returns version and name as they stand in the file's name.
func (m Migration) String() string { return fmt.Sprintf("%04d_%s", m.Version, m.Name) }

// token is a comment, a literal, a quoted identifier, a word, or a sign.
var token = regexp.MustCompile(`--[^\n]*|'[^']*'|"[^"]*"|[\w{}.$]+|[^\s]`)

// Statements returns the statements of the migration, without comments and the semicolon.
func (m Migration) Statements() []string {
	var list []string
	var statement strings.Builder
	end := func() {
		if s := strings.TrimSpace(statement.String()); s != "" {
			list = append(list, s)
		}
		statement.Reset()
	}
	from := 0
	for _, at := range token.FindAllStringIndex(m.Text, -1) {
		statement.WriteString(m.Text[from:at[0]])
		switch t := m.Text[at[0]:at[1]]; {
		case t == ";":
			end()
		case !strings.HasPrefix(t, "--"):
			statement.WriteString(t)
		}
		from = at[1]
	}
	end()
	return list
}

var checksums sync.Map // of texts: each start and each look of Doctor asks for all of them

// Checksum tells this migration from another one of its version. Comments, white space and the case of keywords may
// be mended after a release.
func (m Migration) Checksum() string {
	if known, ok := checksums.Load(m.Text); ok {
		return known.(string)
	}
	hash := sha256.New()
	for _, s := range m.Statements() {
		for _, t := range token.FindAllString(s, -1) {
			if t[0] != '\'' && t[0] != '"' {
				t = strings.ToLower(t)
			}
			fmt.Fprintf(hash, "%s\n", t)
		}
		fmt.Fprintln(hash, ";")
	}
	sum := hex.EncodeToString(hash.Sum(nil))
	checksums.Store(m.Text, sum)
	return sum
}

var createIndex = regexp.MustCompile(`^CREATE (?:UNIQUE )?INDEX CONCURRENTLY (\{\w+\}) ON (\{\w+\})\s`)

// BuildsIndex returns the placeholders of the index that a statement of a concurrent migration builds, and of its
// table.
func BuildsIndex(statement string) (index, table string, ok bool) {
	parts := createIndex.FindStringSubmatch(statement)
	if parts == nil {
		return "", "", false
	}
	return parts[1], parts[2], true
}
