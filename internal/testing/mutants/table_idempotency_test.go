package mutants

// idempotencyMutants are mutants of HTTP requests with a key.
var idempotencyMutants = []Mutant{
	{
		Name: "H1", File: "internal/sqltext/idempotency.go", In: "integration_test", Test: "TestHTTPOnce",
		Breaks: "a request is carried out again",
		Old:    " WHERE i.expires_at <= clock_timestamp()\nRETURNING",
		New:    "RETURNING",
	},
	{
		Name: "H2", File: "internal/sqltext/idempotency.go", In: "integration_test",
		Test:   "TestHTTPHandlerEndsItsTransaction",
		Breaks: "a request whose response was lost gets the response of an expired one",
		Old:    "expires_at = excluded.expires_at,\n       status = NULL, header = NULL, body = NULL",
		New:    "expires_at = excluded.expires_at",
	},
	{
		Name: "H3", File: "internal/sqltext/idempotency.go", In: "integration_test", Test: "TestHTTPConflict",
		Breaks: "the handler's statements run with the lock_timeout of the claim",
		Old:    "       set_config('lock_timeout', w.lock_timeout, true)\n",
		New:    "       w.lock_timeout\n",
	},
	{
		Name: "H4", File: "idempotency/row.go", In: "integration_test", Second: true,
		Test:   "TestHTTPRepetitionWaitsForTheStandby",
		Breaks: "a response that a standby may not have is replayed",
		Old:    "if err == nil && !standby {",
		New:    "if err == nil {",
	},
	{
		Name: "H5", File: "idempotency/row.go", In: "integration_test", Test: "TestHTTPOtherRequest",
		Breaks: "another request with the same key gets the response of the first",
		Old:    "case !bytes.Equal(hash, q.fingerprint):",
		New:    "case !bytes.Equal(hash, hash):",
	},
	{
		Name: "H6", File: "internal/sqltext/idempotency.go", In: "integration_test",
		Test:   "TestHTTPHandlerEndsItsTransaction",
		Breaks: "a response is stored after the handler's own COMMIT",
		Old:    "StoreAnswerMarked = StoreAnswer + ` AND ` + isMarked",
		New:    "StoreAnswerMarked = StoreAnswer",
	},
	{
		Name: "H7", File: "idempotency/response.go", In: "integration_test", Test: "TestHTTPFailures",
		Breaks: "a failure of the server is stored as the response",
		Old:    "return status < 500",
		New:    "return status < 600",
	},
	{
		Name: "H8", File: "idempotency/attempt.go", In: "integration_test", Test: "TestHTTPFailures",
		Breaks: "the writes of a handler that responded with 400 are committed",
		Old:    "case w.status >= http.StatusBadRequest:",
		New:    "case false:",
	},
	{
		Name: "H9", File: "internal/sqltext/idempotency.go", In: "integration_test", Test: "TestCleaningKeys",
		Breaks: "responses are deleted before they expire",
		Old:    "     WHERE expires_at <= coalesce(nullif($2::text, '')::timestamptz, statement_timestamp())\n",
		New:    "     WHERE created_at <= coalesce(nullif($2::text, '')::timestamptz, statement_timestamp())\n",
	},
	{
		Name: "H10", File: "idempotency/gate.go", In: "integration_test", Test: "TestHTTPWaitersKeepNoConnections",
		Breaks: "repeated requests hold all connections",
		Old:    "if !taken {",
		New:    "if !taken || true {",
	},
	{
		Name: "H11", File: "idempotency/row.go", In: "integration_test", Test: "TestHTTPHandlerEndsItsTransaction",
		Breaks: "a lost response is replayed as an empty one",
		Old:    "case !status.Valid:",
		New:    "case false:",
	},
	{
		Name: "H12", File: "idempotency/attempt.go", In: "integration_test", Test: "TestHTTPHandlerEndsItsTransaction",
		Breaks: "a request is repeated although its handler has committed",
		Old:    "if errors.Is(err, outbox.ErrCommitUnknown) || errors.Is(err, outbox.ErrTxEnded) {",
		New:    "if errors.Is(err, outbox.ErrCommitUnknown) {",
	},
}
