package integration_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
)

// now returns the database's time.
func (h handle) now(t testing.TB) time.Time {
	t.Helper()
	return value[time.Time](t, h, "select clock_timestamp()")
}

// exists reports whether a message has a row.
func (x ibx) exists(t testing.TB, id string) bool {
	t.Helper()
	return x.count(t, "select count(*) from inbox_queue where source = $1 and message_id = $2", x.name, id) == 1
}

// ibxRow is a row of the queue.
type ibxRow struct {
	ID                                        int64
	Source, MessageID, Topic, Key, State      string
	Payload                                   []byte
	Metadata                                  string // JSON
	Hash                                      []byte
	FirstSeenAt, LastSeenAt, DueAt, ExpiresAt time.Time
	Attempts, Crashes                         int
	LastError                                 string
	DoneAt                                    time.Time
	Owner                                     string
	LockedUntil                               time.Time
}

// row returns the row of a message, including columns that the Store does not expose.
func (x ibx) row(t testing.TB, id string) ibxRow {
	t.Helper()
	q := ibxRow{Source: x.name, MessageID: id}
	var due, expires, done, locked *time.Time
	require.NoError(t, drive.Collect(t.Context(), (*core.DB)(x.db), func(rows drive.Rows) error {
		return rows.Scan(&q.ID, &q.Topic, &q.Key, &q.State, &q.Payload, &q.Metadata, &q.Hash, &q.FirstSeenAt, &q.LastSeenAt,
			&due, &expires,
			&q.Attempts, &q.Crashes, &q.LastError, &done, &q.Owner, &locked)
	}, `select id, topic, key, state, payload, metadata::text, hash, first_seen_at, last_seen_at, due_at, expires_at,
		attempts, crashes, coalesce(last_error, ''), done_at, coalesce(owner::text, ''), locked_until
		from inbox_queue where source = $1 and message_id = $2`, x.name, id))
	for at, from := range map[*time.Time]*time.Time{
		&q.DueAt: due, &q.ExpiresAt: expires, &q.DoneAt: done, &q.LockedUntil: locked,
	} {
		if from != nil {
			*at = *from
		}
	}
	return q
}

// change updates the topic, state, counts and times of a row, bypassing the Store.
func (x ibx) change(t testing.TB, id string, change func(q *ibxRow)) {
	t.Helper()
	q := x.row(t, id)
	change(&q)
	time := func(at time.Time) any { return sql.NullTime{Time: at, Valid: !at.IsZero()} }
	x.exec(t, `update inbox_queue set topic = $3, state = $4, attempts = $5, crashes = $6, due_at = $7, done_at = $8, locked_until = $9
		where source = $1 and message_id = $2`, x.name, id, q.Topic, q.State, q.Attempts, q.Crashes, time(q.DueAt),
		time(q.DoneAt), time(q.LockedUntil))
}

// nobodys checks that a message has no owner.
func (x ibx) nobodys(t testing.TB, id string) {
	t.Helper()
	q := x.row(t, id)
	assert.Empty(t, q.Owner)
	assert.Zero(t, q.LockedUntil)
}

var ibxHandlers = []requirement{
	{number: 73, text: "a message goes to the handler of its topic", verdict: held, shownBy: "TestDispatcherDecides"},
	{number: 74, text: "an unknown topic is logged as a warning and its message kept", verdict: differs,
		why: "Without a charge, however long it takes: a rolling deployment whose old processes do not know the new " +
			"topic must not use up attempts. The message is left to other processes for 10 s, then waits one minute " +
			"at a time. After an hour the waits grow, up to an hour. DispatcherConfig.DefaultHandler handles such " +
			"messages.",
		shownBy: "TestUnknownTopicIsKept TestServicesShareAQueue " +
			"TestDefaultHandlerTakesTheRest"},
	{
		number: 75, text: "a handler's error decides between abandon and fail", verdict: held,
		shownBy: "TestDispatcherDecides",
	},
	{number: 76, text: "a handler gets the message and a context", verdict: held, shownBy: "TestDispatcherLogs"},
	{number: 77, text: "handlers should be idempotent", verdict: differs,
		why: "Handlers in a transaction need not be, as far as the database is concerned: the ack commits with their " +
			"writes. Detached handlers should be.",
		shownBy: "TestDispatcherCommitsWithItsHandlers"},
	{number: 78, text: "no two handlers have a message at the same time", verdict: differs,
		why: "Guaranteed within one process. If a process stalls for longer than its lease, another one may start a " +
			"detached handler before the first one returns; the first one's context has ended by then. A handler in a " +
			"transaction keeps the message as long as its connection lasts, and commits nothing afterwards.",
		shownBy: "TestPausedHandlerAppliesNothing TestStoppedProcessChangesNothing TestDispatchersUnderFire"},
	{
		number: 79, text: "different messages are handled at the same time", verdict: held,
		shownBy: "TestDispatcherTakesNoMoreThanItHandles",
	},
}

var ibxDatabases = []requirement{
	{number: 85, text: "each database has its own store", verdict: held, shownBy: "TestStoresOfAFleet"},
	{
		number: 86, text: "a strategy selects the store to poll", verdict: held,
		shownBy: "TestFleetSelection TestQueueGroupTakesTurns",
	},
	{
		number: 87, text: "round robin takes one batch of each in turn", verdict: held,
		shownBy: "TestFleetSelection TestQueueGroupTakesTurns",
	},
	{
		number: 88, text: "drain first stays with a store until it is empty", verdict: held,
		shownBy: "TestFleetSelection TestQueueGroupTakesTurns",
	},
	{number: 89, text: "each store has an identifier", verdict: held, shownBy: "TestStoresOfAFleet"},
	{number: 90, text: "lines about messages name the store", verdict: held, shownBy: "TestStoresOfAFleet"},
	{number: 91, text: "the router returns the store of a key", verdict: held, shownBy: "TestStoresOfAFleet"},
	{
		number: 92, text: "an unknown key is an error", verdict: differs, why: "The error is fleet.ErrUnknownDatabase.",
		shownBy: "TestStoresOfAFleet",
	},
}

var ibxDiscovery = []requirement{
	{
		number: 93, text: "the list of databases is refreshed periodically", verdict: held,
		shownBy: "TestFleetFollowsItsDiscovery",
	},
	{number: 94, text: "every 5 minutes by default", verdict: held, shownBy: "TestFleetRefreshInterval"},
	{number: 95, text: "new databases get stores", verdict: held, shownBy: "TestFleetFollowsItsDiscovery"},
	{number: 96, text: "removed databases lose theirs", verdict: differs,
		why: "After the last use of the store. An empty list of databases counts as a fault until discovery has " +
			"returned it three times and for as long as the refresh interval.",
		shownBy: "TestFleetFollowsItsDiscovery TestFleetBelievesAnEmptyDiscoveryInTheEnd"},
	{number: 97, text: "unchanged databases keep their stores", verdict: held, shownBy: "TestFleetFollowsItsDiscovery"},
}
