package sqltext

// The statements with which forwarders share the lanes of a scope. Every change of a lane's owner compares and raises
// its epoch, so of two forwarders that decide on stale data only one succeeds.
const (
	// LockForwarders keeps others from joining while a forwarder checks whether it may. It blocks nothing else: a process
	// that is suspended while it has the lock must not keep others from renewing their leases.
	LockForwarders = `SELECT pg_advisory_xact_lock(` + forwardersLock + `)`

	// LockToJoin takes the lock of LockForwarders with time limits. If a process stops between two statements of this
	// transaction, the server ends its session, which frees the lock. Others wait slightly longer than that takes. The
	// functions run from left to right.
	//
	// Arguments: how long this session may be idle in the transaction, how long it waits for a lock, in milliseconds.
	LockToJoin = `SELECT set_config('idle_in_transaction_session_timeout', $1::text, true),
       set_config('lock_timeout', $2::text, true),
       pg_advisory_xact_lock(` + forwardersLock + `)::text`

	// JoinLockHolder returns the session that has the lock of LockForwarders: its pid, its state, program and address
	// as far as the role may see them, and the seconds for which it has been in that state.
	JoinLockHolder = `SELECT l.pid, concat_ws(', ', nullif(a.state, ''), nullif(a.application_name, ''),
       host(a.client_addr)),
       coalesce(extract(epoch FROM clock_timestamp() - a.state_change), 0)::float8
  FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
   AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
   AND l.classid::bigint =
     ((` + forwardersLock + ` >> 32) & 4294967295) AND l.objid::bigint = (` + forwardersLock + ` & 4294967295)`

	forwardersLock = `hashtextextended('forwarders of ' || {outbox_text}, 0)`

	// AnnounceForwarder writes the heartbeat row of a forwarder that waits for its turn. Its wait counts from the
	// beginning of the wait of the first forwarder of its set, because the sets take turns, not the forwarders. After its
	// lease expires it must wait again.
	//
	// Arguments: own id, scope, topics (sorted; empty = all), name, lease time in seconds, facts about itself (JSON),
	// its own time (seconds since 1970).
	AnnounceForwarder = `INSERT INTO {forwarders} AS mine (id, scope, topics, name, expires_at, facts, waiting_since)
SELECT $1::uuid, $2::text, $3::text[], $4::text, clock_timestamp() + $5::float8 * interval '1 second',
       $6::jsonb || jsonb_build_object('role', current_user,
         'clock_ahead', $7::float8 - extract(epoch FROM clock_timestamp())), coalesce(min(f.waiting_since),
           clock_timestamp())
  FROM {forwarders} f
 WHERE f.scope = $2::text AND f.topics = $3::text[] AND f.expires_at > clock_timestamp()
ON CONFLICT (id) DO UPDATE
   SET waiting_since = CASE WHEN mine.expires_at > clock_timestamp() THEN coalesce(mine.waiting_since,
     excluded.waiting_since)
                            ELSE excluded.waiting_since END,
       expires_at = excluded.expires_at, facts = excluded.facts`

	// ForwardersAhead lists the live forwarders for which a forwarder must wait: their topics overlap with its own under
	// another scope, or differ under the same one, and they are running or have waited for longer. Running ones come
	// first.
	//
	// Arguments: own id.
	ForwardersAhead = `SELECT f.scope, f.name, array_to_string(f.topics, ', '), f.waiting_since IS NOT NULL
  FROM {forwarders} mine JOIN {forwarders} f ON f.id <> mine.id AND f.expires_at > clock_timestamp()
   AND CASE WHEN f.scope = mine.scope THEN f.topics <> mine.topics
            ELSE f.topics = '{}' OR mine.topics = '{}' OR f.topics && mine.topics END
 WHERE mine.id = $1::uuid
   AND (f.waiting_since IS NULL OR (f.waiting_since, f.scope, f.topics) < (mine.waiting_since, mine.scope, mine.topics))
 ORDER BY f.waiting_since NULLS FIRST, f.id LIMIT 10`

	// JoinForwarders ends the wait of a forwarder and restarts its lease, of which the steps since its announcement may
	// have taken most.
	//
	// Arguments: own id, lease time in seconds.
	JoinForwarders = `UPDATE {forwarders} SET waiting_since = NULL,
  expires_at = clock_timestamp() + $2::float8 * interval '1 second'
 WHERE id = $1::uuid AND waiting_since IS NOT NULL`

	// CreateLanes writes the missing lanes of a scope. Their epochs start with the transaction id, so that they exceed
	// those of lanes that were deleted meanwhile: each change of an epoch was a transaction.
	//
	// Arguments: scope.
	CreateLanes = `INSERT INTO {lanes} (scope, lane, epoch)
SELECT $1::text, n, pg_current_xact_id()::text::bigint FROM generate_series(0, 63) AS n ON CONFLICT DO NOTHING`

	// Heartbeat renews the lease. It changes no row if the lease has expired, because others may have joined since, or if
	// the server has lost the commit with which the forwarder joined: it must join again.
	//
	// Arguments: own id, lease time in seconds, whether the forwarder is shutting down and no longer has a share, whether
	// it has joined.
	Heartbeat = `UPDATE {forwarders} SET expires_at = clock_timestamp() + $2::float8 * interval '1 second',
  leaving = $3::bool
 WHERE id = $1::uuid AND expires_at > clock_timestamp() AND NOT ($4::bool AND waiting_since IS NOT NULL)`

	// WriteFacts updates the facts that a forwarder writes about itself.
	//
	// Arguments: own id, facts (JSON), its own time (seconds since 1970).
	WriteFacts = `UPDATE {forwarders}
   SET facts = facts || $2::jsonb || jsonb_build_object('clock_ahead',
     $3::float8 - extract(epoch FROM clock_timestamp()))
 WHERE id = $1::uuid`

	// Members lists the forwarders whose leases have not expired: whether each belongs to a scope and gets lanes, the
	// seconds until its lease expires, the time of expiry in microseconds, and the length of a lease in seconds (0 =
	// unknown).
	//
	// Arguments: scope.
	Members = `SELECT f.id::text, f.scope = $1::text AND NOT f.leaving AND f.waiting_since IS NULL,
       extract(epoch FROM f.expires_at - clock_timestamp())::float8, ` + expiry + `,
       CASE WHEN jsonb_typeof(f.facts->'lease_ttl') = 'number' THEN (f.facts->>'lease_ttl')::float8 / 1e9 ELSE 0 END
  FROM {forwarders} f
 WHERE f.expires_at > clock_timestamp() AND isfinite(f.expires_at) ORDER BY f.id`

	// ExpireForwarder ends the lease of a forwarder that has not renewed it for the length of a lease. The clock does
	// not show that after it was set back.
	//
	// Arguments: its id, time of expiry as returned by Members.
	ExpireForwarder = `UPDATE {forwarders} f SET expires_at = clock_timestamp() WHERE f.id = $1::uuid AND ` + expiry +
		` = $2::bigint`

	expiry = `(extract(epoch FROM f.expires_at) * 1000000)::bigint`

	// A forwarder that waits to join again renews its row, but its lease has ended: it reads none of the lanes that it
	// still owns because it could not release them, or because the reply to taking them was lost.
	isRunning = `f.expires_at > clock_timestamp() AND f.waiting_since IS NULL`

	// Lanes lists the lanes of a scope: epoch, owner ('' = none) and whether that owner is running.
	//
	// Arguments: scope.
	Lanes = `SELECT l.lane, l.epoch, coalesce(l.owner::text, ''), f.id IS NOT NULL
  FROM {lanes} l LEFT JOIN {forwarders} f ON f.id = l.owner AND ` + isRunning + `
 WHERE l.scope = $1::text AND l.lane BETWEEN 0 AND 63 ORDER BY l.lane`

	// TakeLanes takes lanes whose epoch has not changed and whose owner is not running. It sets epochs above all epochs
	// under which the new owner had the lanes: after a crash that lost commits, or a restore, the epochs in the table may
	// be older.
	//
	// Arguments: scope, own id, lanes, epochs, the highest epochs that the new owner had.
	TakeLanes = `UPDATE {lanes} l SET owner = $2::uuid, epoch = greatest(l.epoch, c.had) + 1
  FROM unnest($3::bigint[], $4::bigint[], $5::bigint[]) AS c(lane, epoch, had)
 WHERE l.scope = $1::text AND l.lane = c.lane AND l.epoch = c.epoch
   AND NOT EXISTS (SELECT FROM {forwarders} f WHERE f.id = l.owner AND ` + isRunning + `)
RETURNING l.lane, l.epoch`

	// RetakeLanes raises the epochs of a forwarder's own lanes, so that it can start over with them: unsettled results
	// under the old epochs must not count.
	//
	// Arguments: as for TakeLanes.
	RetakeLanes = `UPDATE {lanes} l SET epoch = greatest(l.epoch, c.had) + 1
  FROM unnest($3::bigint[], $4::bigint[], $5::bigint[]) AS c(lane, epoch, had)
 WHERE l.scope = $1::text AND l.owner = $2::uuid AND l.lane = c.lane AND l.epoch = c.epoch
RETURNING l.lane, l.epoch`

	// ReleaseLanes releases lanes. The epoch rises when a forwarder takes them.
	//
	// Arguments: scope, own id, lanes, epochs.
	ReleaseLanes = `UPDATE {lanes} l SET owner = NULL
  FROM unnest($3::bigint[], $4::bigint[]) AS c(lane, epoch)
 WHERE l.scope = $1::text AND l.owner = $2::uuid AND l.lane = c.lane AND l.epoch = c.epoch`

	// LeaveForwarders deletes the heartbeat row, and the forwarder's paused topics.
	//
	// Arguments: own id.
	LeaveForwarders = `WITH topics AS (DELETE FROM {outbox_topics} WHERE forwarder = $1::uuid)
DELETE FROM {forwarders} WHERE id = $1::uuid`

	// ForgetForwarders deletes the rows of forwarders that no longer exist: heartbeat rows that expired long ago, the
	// lanes of scopes without forwarders, and the topics that they had paused. It must run in a transaction after
	// LockForwarders; otherwise the lanes of a forwarder that joins may vanish.
	//
	// Arguments: age in seconds.
	ForgetForwarders = `WITH gone AS (
    DELETE FROM {forwarders} WHERE expires_at < clock_timestamp() - $1::float8 * interval '1 second' RETURNING id
), topics AS (
    DELETE FROM {outbox_topics} t
     WHERE t.forwarder <> '00000000-0000-0000-0000-000000000000'
       AND NOT EXISTS (SELECT FROM {forwarders} f WHERE f.id = t.forwarder AND f.id NOT IN (SELECT gone.id FROM gone))
)
DELETE FROM {lanes} l
 WHERE NOT EXISTS (SELECT FROM {forwarders} f WHERE f.scope = l.scope AND f.id NOT IN (SELECT gone.id FROM gone))`
)
