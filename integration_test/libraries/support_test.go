package libraries

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"sync"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

func TestMain(m *testing.M) {
	stop := services.StopOnSignal()
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop services:", err)
		code = 1
	}
	os.Exit(code)
}

var start = sync.OnceValues(func() (*services.Postgres, error) {
	return services.StartPostgres(context.Background(), services.Options{})
})

// newDatabase returns the URL of an empty database.
func newDatabase(t *testing.T) string {
	t.Helper()
	server, err := start()
	require.NoError(t, err)
	url, err := server.NewDatabase(t.Context())
	require.NoError(t, err)
	return url
}

func open(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func openOutbox(t *testing.T, db *sql.DB, tables outbox.Tables) *outbox.DB {
	t.Helper()
	handle, err := outbox.FromSQL(db, outbox.DBConfig{Tables: tables}, nil)
	require.NoError(t, err)
	return handle
}

func column(t *testing.T, db *sql.DB, query string, args ...any) (all []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query, args...)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var s string
		require.NoError(t, rows.Scan(&s))
		all = append(all, s)
	}
	require.NoError(t, rows.Err())
	return all
}
