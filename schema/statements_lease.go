package schema

// The statements by which forwarders share the lanes of a scope. Every change of a lane's owner
// compares and raises its epoch, so two that decide on old knowledge cannot both succeed.
const (
	// LockForwarders keeps others from joining while one checks whether it may. It stops nobody else: a process
	// that is frozen while it has the lock must not keep the others from renewing their leases.
	LockForwarders = `SELECT pg_advisory_xact_lock(hashtextextended('forwarders of ' || {outbox_text}, 0))`

	// ConflictingForwarder finds a live forwarder whose topics overlap under another scope, or differ
	// under the same one.
	//
	// Arguments: own id, scope, topics (sorted; empty = all).
	ConflictingForwarder = `SELECT f.scope, f.name, array_to_string(f.topics, ', ') FROM {forwarders} f
 WHERE f.id <> $1::uuid AND f.expires_at > clock_timestamp()
   AND CASE WHEN f.scope = $2::text THEN f.topics <> $3::text[]
            ELSE f.topics = '{}' OR $3::text[] = '{}' OR f.topics && $3::text[] END
 LIMIT 1`

	// JoinForwarders writes the heartbeat row.
	//
	// Arguments: own id, scope, topics, name, lease time in seconds.
	JoinForwarders = `INSERT INTO {forwarders} (id, scope, topics, name, expires_at)
VALUES ($1::uuid, $2::text, $3::text[], $4::text, clock_timestamp() + $5::float8 * interval '1 second')
ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at`

	// CreateLanes writes the lanes of a scope once.
	//
	// Arguments: scope.
	CreateLanes = `INSERT INTO {lanes} (scope, lane) SELECT $1::text, generate_series(0, 63) ON CONFLICT DO NOTHING`

	// Heartbeat renews the lease. It touches no row if that has run out: others may have joined since that
	// could not have before, so the forwarder must join anew.
	//
	// Arguments: own id, lease time in seconds, whether the forwarder is shutting down and has no share any more.
	Heartbeat = `UPDATE {forwarders} SET expires_at = clock_timestamp() + $2::float8 * interval '1 second', leaving = $3::bool
 WHERE id = $1::uuid AND expires_at > clock_timestamp()`

	// Members lists the live forwarders of a scope that are to have lanes, and in how many seconds each lease runs out.
	//
	// Arguments: scope.
	Members = `SELECT f.id::text, extract(epoch FROM f.expires_at - clock_timestamp())::float8 FROM {forwarders} f
 WHERE f.scope = $1::text AND f.expires_at > clock_timestamp() AND NOT f.leaving ORDER BY f.id`

	// Lanes lists the lanes of a scope: epoch, owner ('' = none) and whether that owner is alive.
	//
	// Arguments: scope.
	Lanes = `SELECT l.lane, l.epoch, coalesce(l.owner::text, ''), f.id IS NOT NULL
  FROM {lanes} l LEFT JOIN {forwarders} f ON f.id = l.owner AND f.expires_at > clock_timestamp()
 WHERE l.scope = $1::text ORDER BY l.lane`

	// TakeLanes takes lanes whose epoch is still the one that was read and whose owner is not alive.
	//
	// Arguments: scope, own id, lanes, epochs.
	TakeLanes = `UPDATE {lanes} l SET owner = $2::uuid, epoch = l.epoch + 1
  FROM unnest($3::bigint[], $4::bigint[]) AS c(lane, epoch)
 WHERE l.scope = $1::text AND l.lane = c.lane AND l.epoch = c.epoch
   AND NOT EXISTS (SELECT FROM {forwarders} f WHERE f.id = l.owner AND f.expires_at > clock_timestamp())
RETURNING l.lane, l.epoch`

	// ReleaseLanes gives lanes back. The epoch rises when somebody takes them.
	//
	// Arguments: scope, own id, lanes, epochs.
	ReleaseLanes = `UPDATE {lanes} l SET owner = NULL
  FROM unnest($3::bigint[], $4::bigint[]) AS c(lane, epoch)
 WHERE l.scope = $1::text AND l.owner = $2::uuid AND l.lane = c.lane AND l.epoch = c.epoch`

	// LeaveForwarders deletes the heartbeat row, and those of forwarders that have been dead for long.
	//
	// Arguments: own id, how long in seconds.
	LeaveForwarders = `DELETE FROM {forwarders} WHERE id = $1::uuid OR expires_at < clock_timestamp() - $2::float8 * interval '1 second'`
)
