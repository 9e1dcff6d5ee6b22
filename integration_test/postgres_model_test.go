package integration_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/testing/modeldb"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

const (
	modelPrograms = 4   // a thousand with OUTBOX_LONG
	modelActs     = 250 // per program
	modelKeys     = 5
	modelMessages = 3000
)

// TestModelIsPostgres runs random programs of the forwarder's statements over six connections, on a real server and on
// package modeldb's model of it. All results are identical, including transaction ids and snapshots, and the state
// after a crash is the model's state after one of its commits.
func TestModelIsPostgres(t *testing.T) {
	extended(t)
	t.Parallel()
	server, h := ownMigratedServer(t, "autovacuum=off", "synchronous_commit=off", "wal_writer_delay=10s",
		"wal_writer_flush_after=1GB")
	h.exec(t, "create table elsewhere (n int)")
	h.pool.Close()
	programs := modelPrograms
	if os.Getenv("OUTBOX_LONG") != "" {
		programs = 1000
	}
	acts := map[string]int{}
	for seed := range uint64(programs) {
		w := &twin{server: server, rng: rand.New(rand.NewPCG(seed, 0)), did: acts}
		err := w.run(t.Context(), modelActs)
		w.disconnect()
		require.NoError(t, err, "program %d: its last acts:\n%s", seed, strings.Join(w.said[max(0, len(w.said)-25):], "\n"))
	}
	for _, name := range []string{
		"fetch", "settle published", "settle failed", "take", "crash", "roll back to savepoint", "release savepoint",
	} {
		require.NotZero(t, acts[name], "no program did this: %s", name)
	}
	t.Log(acts)
}

// twin is a server and its model.
type twin struct {
	server  *services.Postgres
	model   *modeldb.DB
	rng     *rand.Rand
	conn    *pgx.Conn
	writers [5]writer
	laneOf  map[string]int16 // of keys and UUIDs
	lives   []knownLife
	uuids   int
	times   int64              // each due time is different, so that their order is known
	had     map[string][]int64 // epochs, by forwarder
	said    []string
	did     map[string]int
}

type writer struct {
	conn *pgx.Conn
	tx   *modeldb.Tx // nil = no open transaction
}

// knownLife is an incarnation as named by the server and by the model.
type knownLife struct {
	name  string
	model int
}

func (w *twin) run(ctx context.Context, acts int) error {
	if err := w.begin(ctx); err != nil {
		return err
	}
	for n := range acts {
		if err := w.act(ctx); err != nil {
			return fmt.Errorf("act %d: %w", n, err)
		}
		if n%10 == 0 || n == acts-1 {
			if err := w.compareTables(ctx); err != nil {
				return fmt.Errorf("after act %d: %w", n, err)
			}
		}
	}
	return nil
}

// begin empties the server's tables and creates a matching model.
func (w *twin) begin(ctx context.Context) error {
	if err := w.connect(ctx); err != nil {
		return err
	}
	// Durable, so that no crash restores the old rows.
	if _, err := w.conn.Exec(ctx, `begin; set local synchronous_commit = on; truncate outbox restart identity;
		delete from outbox_lanes; delete from outbox_forwarders; delete from outbox_life; commit`); err != nil {
		return err
	}
	w.laneOf, w.had = map[string]int16{}, map[string][]int64{}
	names := []string{""}
	for k := range modelKeys {
		names = append(names, fmt.Sprint("k", k))
	}
	for n := range modelMessages {
		names = append(names, fmt.Sprint("m", n))
	}
	lanes, err := list(w, ctx, "select (hashtext(n) & 63)::smallint from unnest($1::text[]) with ordinality as u(n, i)"+
		" order by i", pgx.RowTo[int16], names)
	if err != nil {
		return err
	}
	for i, n := range names {
		w.laneOf[n] = lanes[i]
	}
	next, err := list(w, ctx, "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint", pgx.RowTo[int64])
	if err != nil {
		return err
	}
	w.model = modeldb.New(next[0])
	return nil
}

func (w *twin) connect(ctx context.Context) (err error) {
	if w.conn, err = pgx.Connect(ctx, w.server.URL()); err != nil {
		return err
	}
	for i := range w.writers {
		if w.writers[i].conn, err = pgx.Connect(ctx, w.server.URL()); err != nil {
			return err
		}
		w.writers[i].tx = nil
	}
	return nil
}

func (w *twin) disconnect() {
	for _, c := range append([]writer{{conn: w.conn}}, w.writers[:]...) {
		if c.conn != nil {
			_ = c.conn.Close(context.Background())
		}
	}
}

// list runs a query with the default table names and returns its rows.
func list[T any](w *twin, ctx context.Context, query string, scan pgx.RowToFunc[T], args ...any) ([]T, error) {
	rows, err := w.conn.Query(ctx, sqltext.Tables{}.Render(query), args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

func (w *twin) exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := w.conn.Exec(ctx, sqltext.Tables{}.Render(query), args...)
	return tag.RowsAffected(), err
}

// same compares the results of the model and the server.
func (w *twin) same(what string, model, server any) error {
	w.did[what]++
	m, s := fmt.Sprintf("%+v", model), fmt.Sprintf("%+v", server)
	w.said = append(w.said, fmt.Sprintf("%s: %s", what, m))
	if m != s {
		return fmt.Errorf("%s: the model returns\n%s\nand the server\n%s", what, m, s)
	}
	return nil
}

const modelTables = `select id, uuid, topic, key, lane, attempts, attempts = 1 and last_error is null,
       coalesce(round(extract(epoch from due_at - clock_timestamp()) / 10000) * 10000, 0)::bigint,
       published_at is not null, dead_at is not null, coalesce(metadata->>'outbox_generation', '')
  from outbox order by id`

// compareTables compares all committed rows.
func (w *twin) compareTables(ctx context.Context) error {
	rows, err := list(w, ctx, modelTables, func(row pgx.CollectableRow) (r modeldb.Row, err error) {
		return r, row.Scan(&r.ID, &r.UUID, &r.Topic, &r.Key, &r.Lane, &r.Attempts, &r.Untried, &r.Due, &r.Published,
			&r.Dead, &r.Generation)
	})
	if err != nil {
		return err
	}
	var model []modeldb.Row
	for _, r := range w.model.Rows() {
		model = append(model, *r)
	}
	if err := w.same("outbox", model, rows); err != nil {
		return err
	}
	if err := w.members(ctx); err != nil {
		return err
	}
	return w.compareLanes(ctx)
}

type laneState struct {
	Owner string
	Epoch int64
	Alive bool
}

func (w *twin) compareLanes(ctx context.Context) error {
	lanes, err := list(w, ctx, sqltext.Lanes, func(row pgx.CollectableRow) (l laneState, err error) {
		var n int16
		return l, row.Scan(&n, &l.Epoch, &l.Owner, &l.Alive)
	}, modelScope)
	if err != nil {
		return err
	}
	var model []laneState
	owners, alive := w.model.Lanes()
	for n, l := range owners {
		model = append(model, laneState{l.Owner, l.Epoch, alive[n]})
	}
	return w.same("lanes", model, lanes)
}

// crash kills the server: its state must then be the model's state after one of its commits.
func (w *twin) crash(ctx context.Context) error {
	w.disconnect()
	if err := w.server.Kill(); err != nil {
		return err
	}
	if err := w.server.Restart(ctx); err != nil {
		return err
	}
	if err := w.connect(ctx); err != nil {
		return err
	}
	first := w.compareTables(ctx)
	lost := 0
	for err := first; err != nil; err = w.compareTables(ctx) {
		if w.model.Commits() == 0 {
			return fmt.Errorf("after a crash the server's state is not the model's after any of its commits: %w", first)
		}
		lost++
		w.model.Lose(1)
	}
	next, err := list(w, ctx, "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint", pgx.RowTo[int64])
	if err != nil {
		return err
	}
	seq, err := list(w, ctx, "select last_value - (not is_called)::int from {outbox_id_seq}", pgx.RowTo[int64])
	if err != nil {
		return err
	}
	w.said = append(w.said, fmt.Sprintf("the server crashes and loses %d commits; ids continue at %d, transactions at %d",
		lost, seq[0], next[0]))
	w.did["crash"]++
	w.did["commits lost"] += lost
	if rows := w.model.Rows(); len(rows) > 0 && seq[0] < rows[len(rows)-1].ID {
		return fmt.Errorf("after a crash the sequence is at %d, below an existing row", seq[0])
	}
	w.model.Crash(seq[0], next[0])
	return nil
}

// pick returns some elements of a list, in order.
func pick[T any](rng *rand.Rand, all []T, percent int) (some []T) {
	for _, x := range all {
		if rng.IntN(100) < percent {
			some = append(some, x)
		}
	}
	return some
}

// sorted returns a copy in ascending order.
func sorted(list []int64) []int64 {
	list = slices.Clone(list)
	slices.Sort(list)
	return list
}
