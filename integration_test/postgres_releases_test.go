package integration_test

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// postgresReleases are those that the project supports, oldest first; `make test-matrix` runs all tests on each.
var postgresReleases = []string{"13.23.0", "14.24.0", "15.19.0", "16.15.0", "17.11.0", "18.6.0"}

// compatible are the tests that go through tables and statements: what another release of Postgres may break at once.
// Partitions are what releases differ in most. How order holds under load is left to `make test-matrix`.
const compatible = `^(TestMigrateIsIdempotent|TestStoreJoinsTransactions|TestFirstMessageOfADatabase|TestTxIsolationAndOnBegin|` +
	`TestRoundTripsOnPgx|TestOperationsStatements|TestRoles|` +
	`TestRoll|TestPutBackUnderOldSnapshot|TestLeavesAreRead|TestFarIDs|TestCheckOfPartitions|` +
	`TestConvertKeepsPrivileges|TestConvertReadsTheRowsOnceAndWaitsForNobody)$`

// TestOldestAndNewestPostgres runs some tests again, each time on another release, in a process of its own.
func TestOldestAndNewestPostgres(t *testing.T) {
	extended(t)
	needsPlainOutbox(t) // this run is on a chosen outbox
	t.Parallel()
	if os.Getenv("OUTBOX_POSTGRES_VERSION") != "" {
		return // this run is on a chosen one
	}
	releases := []string{postgresReleases[0], postgresReleases[len(postgresReleases)-1]}
	for _, release := range releases {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", compatible, "-test.v")
			cmd.Env = append(os.Environ(), "OUTBOX_POSTGRES_VERSION="+release)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			passed := bytes.Count(out, []byte("\n--- PASS: "))
			require.GreaterOrEqual(t, passed, 14, "%s", out)
			major, _, _ := strings.Cut(release, ".")
			require.Regexp(t, regexp.MustCompile(`postgres \(PostgreSQL\) `+major+`\.`), string(out))
		})
	}
}
