package integration_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
)

// TestOutboxctlChecks runs check, as a monitoring system does, on healthy, failing and unreachable outboxes.
func TestOutboxctlChecks(t *testing.T) {
	h := onPgx(t)
	c := ctl{t: t, url: h.url}
	check := func(code int, line string, args ...string) {
		t.Helper()
		r := c.run(append([]string{"check"}, args...)...)
		assert.Equal(t, code, r.code, r.out+r.err)
		assert.Equal(t, 1, strings.Count(r.out, "\n"), r.out)
		assert.Contains(t, r.out, line)
		onlyPrints(t, r.out, args)
	}
	h.exec(t, "INSERT INTO outbox (uuid, topic, payload, created_at) VALUES ('u', E'orders\\x1b[2J', '', "+
		"now() - interval '1 hour')")
	check(2, "OUTBOX CRITICAL - forwarders: ")
	r := c.run("check", "-o", "json")
	var status struct {
		Status   string
		Code     int
		Findings []admin.Finding
	}
	require.NoError(t, json.Unmarshal([]byte(r.out), &status))
	assert.Equal(t, "critical", status.Status)
	assert.Equal(t, 2, status.Code)
	assert.NotEmpty(t, status.Findings)
	assert.Equal(t, admin.Critical, status.Findings[0].Severity)

	r = c.run("doctor")
	assert.Zero(t, r.code, r.err)
	for _, f := range status.Findings {
		assert.Contains(t, r.out, f.Check)
	}
	onlyPrints(t, r.out, "doctor")
	r = c.run("doctor", "-o", "json")
	assert.True(t, json.Valid([]byte(r.out)))

	check(3, "OUTBOX UNKNOWN - ", "--no-such-flag")
	check(3, "OUTBOX UNKNOWN - ", "argument")
	check(3, "OUTBOX UNKNOWN - ", "--output", "xml")
	c.url = "postgres://u:canary@127.0.0.1:1/x"
	check(3, "OUTBOX UNKNOWN - ")
	check(3, `{"status":"unknown","code":3`, "-o", "json")
	assert.NotContains(t, c.run("check").out, "canary")
	c.url = newDatabase(t)
	check(2, "OUTBOX CRITICAL - schema: ")
}
