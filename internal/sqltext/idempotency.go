package sqltext

// The statements of package idempotency: requests that were begun, and their responses.
const (
	// ClaimKey decides in one statement whether the caller must carry out a request, the first column: it is false if a
	// request of the same identity was carried out and has not expired. An expired one is replaced, without its response.
	// A concurrent copy waits here for the first one's transaction, bounded by a lock_timeout that ends with the
	// statement, so that the handler's own statements keep their lock_timeout. If idle transactions have no limit, it
	// sets one for this transaction: without one, the server keeps the locks of a host that vanishes until TCP gives
	// up, two hours by default. The second column shows whether COMMIT may wait for a standby, as in ClaimInbox.
	//
	// The error is 55P03 if the other transaction does not end in time.
	//
	// Arguments: tenant, method, route, key, fingerprint, retention in seconds, longest wait and longest idle time in
	// milliseconds (text; 0 = no limit).
	ClaimKey = `WITH was AS MATERIALIZED (SELECT current_setting('lock_timeout') AS lock_timeout,
       current_setting('idle_in_transaction_session_timeout') AS idle),
waits AS MATERIALIZED (SELECT w.lock_timeout, set_config('lock_timeout', $7::text, true) AS waits,
       set_config('idle_in_transaction_session_timeout',
                  CASE w.idle WHEN '0' THEN $8::text ELSE w.idle END, true) AS idles
  FROM was w),
claimed AS (
INSERT INTO {idempotency} AS i (tenant, method, route, key, fingerprint, expires_at)
SELECT $1::text, $2::text, $3::text, $4::text, $5::bytea, clock_timestamp() + $6::float8 * interval '1 second'
  FROM waits w WHERE w.waits <> '' AND w.idles <> ''
ON CONFLICT (tenant, method, route, key) DO UPDATE
   SET fingerprint = excluded.fingerprint, created_at = excluded.created_at, expires_at = excluded.expires_at,
       status = NULL, header = NULL, body = NULL
 WHERE i.expires_at <= clock_timestamp()
RETURNING true AS ours)
SELECT c.ours IS NOT NULL, current_setting('synchronous_standby_names') <> '',
       set_config('lock_timeout', w.lock_timeout, true)
  FROM waits w LEFT JOIN claimed c ON true`

	// ReadAnswer reads the request that ClaimKey found. The status is NULL if its handler committed without a response.
	//
	// Arguments: tenant, method, route, key.
	ReadAnswer = `SELECT i.fingerprint, i.status, i.header, i.body FROM {idempotency} i
 WHERE i.tenant = $1::text AND i.method = $2::text AND i.route = $3::text AND i.key = $4::text`

	// StoreAnswer stores the response to a request that ClaimKey claimed in this transaction.
	//
	// Arguments: tenant, method, route, key, status, header, body.
	StoreAnswer = `UPDATE {idempotency} i SET status = $5::int, header = $6::bytea, body = $7::bytea
 WHERE i.tenant = $1::text AND i.method = $2::text AND i.route = $3::text AND i.key = $4::text`

	// StoreAnswerMarked is the StoreAnswer of a marked transaction: after a COMMIT by the handler it must not commit on
	// its own.
	StoreAnswerMarked = StoreAnswer + ` AND ` + isMarked

	// CleanKeys deletes a batch of expired requests and their stored responses. Each row has its own expiry.
	//
	// Arguments: batch size, time by which they must have expired (RFC 3339 text, empty = now).
	CleanKeys = `DELETE FROM {idempotency} WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {idempotency}
     WHERE expires_at <= coalesce(nullif($2::text, '')::timestamptz, statement_timestamp())
     ORDER BY expires_at LIMIT $1::int FOR UPDATE SKIP LOCKED))`
)
