// Package migrations holds the text of the migrations, numbered without gaps. A file NNNN_name.sql runs in a
// transaction, together with the other pending files.
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

// FS holds the files. Tests replace it with migrations that no release has.
var FS fs.FS = embedded

// Migration is one file.
type Migration struct {
	Version int
	Name    string
	Text    string // with placeholders for the names
}

var fileName = regexp.MustCompile(`^(\d{4})_([a-z0-9_]+)\.sql$`)

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
			return nil, fmt.Errorf("migration file %s: its name is not of the form 0001_name.sql", e.Name())
		}
		text, err := fs.ReadFile(FS, e.Name())
		if err != nil {
			return nil, err
		}
		m := Migration{Name: parts[2], Text: string(text)}
		if _, err := fmt.Sscanf(parts[1], "%d", &m.Version); err != nil || m.Version != len(all)+1 {
			return nil, fmt.Errorf("migration file %s: its version is not %04d", e.Name(), len(all)+1)
		}
		all = append(all, m)
	}
	return all, nil
}

// String returns version and name as in the file's name.
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

var checksums sync.Map // by text: each start and each run of Doctor needs all of them

// Checksum distinguishes this migration from another one with its version. It ignores comments, white space and the
// case of keywords, which may change after a release.
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
