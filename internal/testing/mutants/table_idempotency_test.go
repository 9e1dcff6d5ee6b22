package mutants

// idempotencyMutants are those of HTTP requests with a key.
var idempotencyMutants = []Mutant{
	{
		Name: "H1", File: "internal/sqltext/idempotency.go", In: "integration_test", Test: "TestHTTPOnce",
		Breaks: "a request is carried out again",
		Old:    " WHERE i.expires_at <= clock_timestamp()\nRETURNING",
		New:    "RETURNING",
	},
	{
		Name: "H2", File: "internal/sqltext/idempotency.go", In: "integration_test", Test: "TestHTTPHandlerEndsItsTransaction",
		Breaks: "a request whose answer was lost gets the answer of one that has expired",
		Old:    "expires_at = excluded.expires_at,\n       status = NULL, header = NULL, body = NULL",
		New:    "expires_at = excluded.expires_at",
	},
	{
		Name: "H3", File: "internal/sqltext/idempotency.go", In: "integration_test", Test: "TestHTTPConflict",
		Breaks: "the handler's statements have the lock_timeout of the claim",
		Old:    "       set_config('lock_timeout', w.lock_timeout, true)\n",
		New:    "       w.lock_timeout\n",
	},
	{
		Name: "H4", File: "idempotency/row.go", In: "integration_test", Second: true, Test: "TestHTTPRepetitionWaitsForTheStandby",
		Breaks: "an answer is repeated that a standby may not have",
		Old:    "if err == nil && !standby {",
		New:    "if err == nil {",
	},
}
