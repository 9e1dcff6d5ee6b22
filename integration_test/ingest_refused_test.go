package integration_test

import (
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/queue"
)

// TestIngestSplitsABatchThatTheDatabaseRefuses: of messages stored in one statement, only those fail that a constraint
// or a trigger refuses. A constraint violation is poison; an error of a trigger may be temporary.
func TestIngestSplitsABatchThatTheDatabaseRefuses(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	raise := func(how string) string {
		return `create function refuse() returns trigger language plpgsql as $$ begin
			if new.message_id like '%bad%' then raise ` + how + `; end if; return new; end $$;
			create trigger refuse before insert on inbox_queue for each row execute function refuse()`
	}
	for name, refusal := range map[string]struct {
		sql    string
		poison bool
	}{
		"constraint":        {"alter table inbox_queue add check (message_id not like '%bad%')", true},
		"trigger":           {raise("exception 'no'"), false},
		"code of its own":   {raise("exception 'no' using errcode = 'MY001'"), false},
		"a data error's":    {raise("data_exception"), true},
		"policy of a table": {raise("with_check_option_violation"), false},
		"swallowed": {`create function refuse() returns trigger language plpgsql as $$ begin
			return case when new.message_id like '%bad%' then null else new end; end $$;
			create trigger refuse before insert on inbox_queue for each row execute function refuse()`, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newPgxHandle(t, newMigratedDatabase(t))
			h.exec(t, refusal.sql)
			var came atomic.Int64
			ingest, err := queue.Ingest(storeOn(t, h, quickStore()), queue.IngestConfig{
				Item: func(msg *message.Message) (queue.Item, error) {
					came.Add(1)
					return queue.Item{ID: queue.ID{Source: "kafka", MessageID: msg.UUID}, Topic: "orders"}, nil
				},
			})
			require.NoError(t, err)
			lock, err := h.pool.Begin(t.Context())
			require.NoError(t, err)
			_, err = lock.Exec(t.Context(), "lock table inbox_queue in exclusive mode")
			require.NoError(t, err)
			type result struct {
				id  string
				err error
			}
			const gathered = 16
			results := make(chan result, gathered+1)
			put := func(id string) { go func() { results <- result{id, ingest(message.NewMessage(id, nil))} }() }
			put("first")
			eventually(t, func() bool {
				return h.count(t, "select count(*) from pg_locks where relation = 'inbox_queue'::regclass and not granted") == 1
			}, "the first waits")
			for i := range gathered {
				put(map[bool]string{true: "bad-", false: "good-"}[i%5 == 2] + itoa(i))
			}
			eventually(t, func() bool { return came.Load() == gathered+1 }, "the others gather behind it")
			require.NoError(t, lock.Rollback(t.Context()))
			for range gathered + 1 {
				switch r := within(t, "an answer", results); {
				case r.id[0] != 'b':
					assert.NoError(t, r.err, r.id)
				case refusal.poison:
					assert.ErrorIs(t, r.err, outbox.ErrPoison, r.id)
				default:
					assert.Error(t, r.err, r.id)
					assert.NotErrorIs(t, r.err, outbox.ErrPoison, r.id)
				}
			}
			assert.Equal(t, 14, h.count(t, "select count(*) from inbox_queue"))
		})
	}
}
