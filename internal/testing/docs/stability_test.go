package docs

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestStabilityNamesTheVersions: the versions in docs/reference/stability.md are those that the tests start or the
// go.mod files require.
func TestStabilityNamesTheVersions(t *testing.T) {
	t.Parallel()
	rows := map[string]string{} // tested versions, by the first column of the table
	_, table, _ := strings.Cut(read(t, "docs/reference/stability.md"), "### Versions")
	for line := range strings.Lines(table) {
		if columns := strings.Split(line, "|"); len(columns) == 5 {
			rows[strings.TrimSpace(columns[1])] = columns[2]
		}
	}
	for _, c := range []struct {
		row, file, pattern string
	}{
		{"PostgreSQL", "integration_test/postgres_releases_test.go", `"(\d+\.\d+)\.\d+"`},
		{"Kafka", "internal/testing/services/kafka_jars.go", `kafkaVersion = "([\d.]+)"`},
		{"Kafka", "internal/testing/services/pom.xml", `(?s)kafka_2\.13</artifactId>\s*<version>([\d.]+)<`},
		{"nats-server", "internal/testing/services/go.mod", `nats-server/v2 v([\d.]+)`},
		{"Go", "go.mod", `(?m)^go ([\d.]+)`},
		{"Watermill", "go.mod", `ThreeDotsLabs/watermill v([\d.]+)`},
		{"watermill-kafka", "go.mod", `watermill-kafka/v3 v([\d.]+)`},
		{"watermill-nats", "nats/go.mod", `watermill-nats/v2 v([\d.]+)`},
		{"watermill-sql", "integration_test/go.mod", `watermill-sql/v\d v([\d.]+)`},
		{"sarama", "go.mod", `IBM/sarama v([\d.]+)`},
		{"pgx", "go.mod", `jackc/pgx/v5 v([\d.]+)`},
		{"lib/pq", "integration_test/go.mod", `lib/pq v([\d.]+)`},
	} {
		versions := regexp.MustCompile(c.pattern).FindAllStringSubmatch(read(t, filepath.FromSlash(c.file)), -1)
		if len(versions) == 0 {
			t.Errorf("%s names no version of %s", c.file, c.row)
		}
		for _, found := range versions {
			exactly := regexp.MustCompile(`(^|[ ,])` + regexp.QuoteMeta(found[1]) + `([ ,]|$)`)
			if !exactly.MatchString(rows[c.row]) {
				t.Errorf("%s requires %s of %s, but docs/reference/stability.md says %q", c.file, found[1], c.row, rows[c.row])
			}
		}
	}
	java := regexp.MustCompile(`oldestJava\s+= (\d+)`).FindStringSubmatch(read(t,
		"internal/testing/services/kafka_jars.go"))
	if java == nil || !strings.Contains(table, "Java "+java[1]+" or later") {
		t.Errorf("docs/reference/stability.md does not name the Java of the tests: %v", java)
	}
}
