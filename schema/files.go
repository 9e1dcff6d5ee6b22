package schema

import "fmt"

// Format is a migration tool whose file layout Files writes.
type Format string

// The formats of Files. Plain SQL in the order of its file names is what atlas and psql read.
const (
	Goose         Format = "goose"
	GolangMigrate Format = "golang-migrate"
	Plain         Format = "plain"
)

// File is one file to write into the tool's migration folder.
type File struct {
	Name    string
	Content string
}

// Files returns the statements of Migrate as files for another migration tool, in the order in which
// they must run. Each also records its version, so that Migrate and Check see what the tool applied.
// There is no way down: an outbox may hold messages that were promised.
func Files(format Format, names Names) ([]File, error) {
	if err := names.Validate(); err != nil {
		return nil, err
	}
	all, err := migrations()
	if err != nil {
		return nil, err
	}
	var files []File
	for _, m := range all {
		body := ""
		if m.version == 1 {
			if names.Schema != "" {
				body += createSchema + quote(names.Schema) + ";\n\n"
			}
			body += names.Render(createMigrations) + ";\n\n"
		}
		body += names.Render(m.text)
		body += fmt.Sprintf("\n"+names.Render("INSERT INTO {migrations} (version, name, checksum) VALUES (%d, '%s', '%s')")+";\n",
			m.version, m.name, m.checksum())
		stem := fmt.Sprintf("%04d_watermill_%s", m.version, m.name)
		switch format {
		case Goose:
			files = append(files, File{stem + ".sql", "-- +goose Up\n" + body})
		case GolangMigrate:
			files = append(files, File{stem + ".up.sql", body})
		case Plain:
			files = append(files, File{stem + ".sql", body})
		default:
			return nil, fmt.Errorf("unknown migration format %q: use %s, %s or %s", format, Goose, GolangMigrate, Plain)
		}
	}
	return files, nil
}
