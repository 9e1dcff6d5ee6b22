package integration_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/middleware"
)

// tripCounter counts round trips: each time that a connection writes after reading. NOTIFY, which reports commits to
// other processes in the background and coalesced, is not counted.
type tripCounter struct {
	net.Conn
	trips   *atomic.Int64
	writing bool
}

func (c *tripCounter) Write(p []byte) (int, error) {
	if !c.writing && !bytes.Contains(p, []byte("pg_notify")) {
		c.writing = true
		c.trips.Add(1)
	}
	return c.Conn.Write(p)
}

func (c *tripCounter) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.writing = false
	}
	return n, err
}

// newCountedHandle opens a handle with one connection whose round trips are counted.
func newCountedHandle(t *testing.T, url string) (handle, *atomic.Int64) {
	t.Helper()
	trips := new(atomic.Int64)
	return pgxHandle(t, "counted", url, func(cfg *pgxpool.Config) {
		cfg.MaxConns = 1
		dial := cfg.ConnConfig.DialFunc
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &tripCounter{Conn: conn, trips: trips}, nil
		}
	}), trips
}

func TestRoundTripsOnPgx(t *testing.T) {
	t.Parallel()
	h, trips := newCountedHandle(t, newMigratedDatabase(t))
	newEffects(t, h)
	silent := func(*message.Message) ([]*message.Message, error) { return nil, nil }
	several := func(msg *message.Message) ([]*message.Message, error) {
		produced, err := book(h)(msg)
		return append(produced, newMessage(""), newMessage("")), err
	}
	mws := stack(t, h, middleware.StackConfig{})
	for _, test := range []struct {
		name    string
		handler message.HandlerFunc
		want    int64
	}{
		{"BEGIN+inbox, INSERT, outbox+COMMIT", book(h), 3},
		{"three messages cost no more", several, 3},
		{"no statement and no message: BEGIN+inbox, COMMIT", silent, 2},
	} {
		_, err := chain(test.handler, mws...)(newMessage("")) // prepares the statements
		require.NoError(t, err)
		trips.Store(0)
		_, err = chain(test.handler, mws...)(newMessage(""))
		require.NoError(t, err)
		assert.Equal(t, test.want, trips.Load(), test.name)
	}
}

// TestRoundTripsOfDuplicates: after a crash or a rebalance thousands of duplicates follow one another. Each but the
// first is found by one statement without a transaction, and a new message costs more only once.
func TestRoundTripsOfDuplicates(t *testing.T) {
	t.Parallel()
	url := newMigratedDatabase(t)
	h, trips := newCountedHandle(t, url)
	newEffects(t, h)
	begins := middleware.TxConfig{OnBegin: func(ctx context.Context, _ *message.Message) error {
		return h.execTx(ctx, "select 1")
	}}
	for _, test := range []struct {
		name string
		cfg  middleware.StackConfig
		want []int64 // for a duplicate, the duplicates after it, a new message, and the one after it
	}{
		{"inbox read first", middleware.StackConfig{}, []int64{2, 1, 1, 4, 3}},
		{"OnBegin may have said who it is", middleware.StackConfig{Tx: begins}, []int64{4, 4, 4, 5, 5}},
	} {
		handler := chain(book(h), stack(t, h, test.cfg)...)
		deliver := func(msg *message.Message) int64 {
			trips.Store(0)
			_, err := handler(msg.Copy())
			require.NoError(t, err, test.name)
			return trips.Load()
		}
		again := newMessage("")
		for range 3 { // prepares the statements
			deliver(again)
		}
		deliver(newMessage(""))
		got := []int64{deliver(again)}
		locks := "select xmax::text from inbox where message_id = '" + again.UUID + "'"
		lockedBy := value[string](t, h, locks)
		got = append(got, deliver(again), deliver(again))
		assert.Equal(t, test.want[1] > 1, lockedBy != value[string](t, h, locks), test.name)
		for range 2 {
			got = append(got, deliver(newMessage("")))
		}
		assert.Equal(t, test.want, got, test.name)
		assert.Equal(t, 1, effects(t, h, again), test.name)
	}
}

// TestNamedMessagesAreLookedUp, each by its index: scanning the table in order would find them too, but reads all of
// it. A message that is named twice is found once.
func TestNamedMessagesAreLookedUp(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `INSERT INTO inbox (consumer, message_id, processed_at)
		SELECT 'shop/' || i % 3, i, now() FROM generate_series(1, 20000) i`)
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, state, payload)
		SELECT 'shop', i, 'orders', 'processing', '' FROM generate_series(1, 20000) i`)
	h.exec(t, `ANALYZE inbox, inbox_queue`)
	ids := []string{"7", "19996", "7"}
	for name, s := range map[string]struct {
		sql  string
		args []any
	}{
		"inbox": {sqltext.Inbox.Page["ids"], scanArgs(ids, "shop/1", "shop/1", "shop/1")},
		"queue": {sqltext.Queue.Page["ids"], scanArgs(ids, "shop", "shop", "shop")},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, pgx.BeginFunc(t.Context(), h.pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), sqltext.WalkIndexes); err != nil {
					return err
				}
				var text []byte
				explain := "EXPLAIN (FORMAT JSON, ANALYZE, BUFFERS, TIMING OFF) "
				err := tx.QueryRow(t.Context(), explain+sqltext.Tables{}.Render(s.sql), s.args...).Scan(&text)
				if err != nil {
					return fmt.Errorf("explain: %w", err)
				}
				var root []struct {
					Plan struct {
						Rows float64 `json:"Actual Rows"` // with decimals since PostgreSQL 18
						Hit  int     `json:"Shared Hit Blocks"`
						Read int     `json:"Shared Read Blocks"`
					}
				}
				require.NoError(t, json.Unmarshal(text, &root))
				assert.InDelta(t, 2, root[0].Plan.Rows, 0, "%s", text)
				assert.Less(t, root[0].Plan.Hit+root[0].Plan.Read, 50, "%s", text)
				return nil
			}))
		})
	}
}

// scanArgs returns the arguments of a scan for named rows.
func scanArgs(names []string, owners ...string) []any {
	return []any{"", "", "", "", "", "", []string{}, 100, 100, int64(math.MaxInt64), "", "-infinity", "", 0, owners, names,
		"",
		int64(math.MaxInt64), 0}
}
