package docs

import (
	"regexp"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

var (
	poolShape        = regexp.MustCompile(`With a forwarder that is two more[:,] (\d+)`)
	concurrencyShape = regexp.MustCompile(`inbound\.Fill\(&c\.Concurrency, (\d+)\)`)
)

// TestPoolSizeIsSaid: the pages on reading by key name the size of a pool that doctor asks for, which is a connection
// for each handler and those of the forwarder.
func TestPoolSizeIsSaid(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://localhost/none") // it connects when it is used
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	needs := (*core.DB)(db).Conns().Needs
	if needs != 2 {
		t.Errorf("a forwarder uses %d connections of a pgx pool, and the pages say two", needs)
	}
	for page, code := range map[string]string{
		"docs/guides/inbound-kafka.md": "subscriber/kafka/config.go",
		"docs/guides/inbound-nats.md":  "subscriber/nats/config.go",
	} {
		said, set := poolShape.FindStringSubmatch(read(t, page)), concurrencyShape.FindStringSubmatch(read(t, code))
		if said == nil || set == nil {
			t.Errorf("%s: %q, %s: %q", page, said, code, set)
			continue
		}
		pool, _ := strconv.Atoi(said[1])
		if handlers, _ := strconv.Atoi(set[1]); pool != handlers+needs {
			t.Errorf("%s says %d connections, for %d handlers and %d of the forwarder", page, pool, handlers, needs)
		}
	}
}
