package schema_test

import (
	"regexp"
	"testing"

	"github.com/millrace-go/watermill-outbox/schema"
)

// TestFilesWriteBooleansAsTrue: Postgres accepts on for a storage option, but Atlas, which inspects the resulting
// tables, reads only true and false.
func TestFilesWriteBooleansAsTrue(t *testing.T) {
	t.Parallel()
	for _, format := range []schema.Format{schema.Goose, schema.GolangMigrate, schema.Plain} {
		files, err := schema.Files(schema.FilesConfig{Format: format})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if found := regexp.MustCompile(`\w+ = (on|off)\b`).FindString(f.Content); found != "" {
				t.Errorf("%s has %q", f.Name, found)
			}
		}
	}
}
