package idempotency

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// Config configures New. Tenant is required.
type Config struct {
	// Tenant returns the authenticated client of a request, in at most 255 bytes. Required. An error results in a 401. A
	// service with a single client returns "".
	Tenant func(r *http.Request) (string, error)
	// Route names the requested resource, in at most 1 KiB; default: the path. The middleware sees the path without a host
	// or a stripped prefix. The same key on another route is a different request.
	Route func(r *http.Request) string
	// Methods are the methods that use keys; default POST and PATCH. Requests with other methods are passed on without a
	// transaction.
	Methods []string
	// Required rejects requests without an Idempotency-Key with a 400; default off: such a request is carried out each
	// time, in a transaction.
	Required bool
	// Retention is how long a response is replayed, from the start of the request; default 24 h, at least Timeout.
	// Forwarders delete expired rows.
	Retention time.Duration
	// MaxBody is the maximum size of a request body in bytes; default 1 MiB. A larger one gets a 413.
	MaxBody int64
	// MaxResponse is the maximum size of a response in bytes; default 1 MiB. A larger one is rolled back and replaced by a
	// 500.
	MaxResponse int
	// Wait is how long a repeated request waits for the first one before it gets a 409; default 5 s, -1 not at all.
	Wait time.Duration
	// DropHeaders are further headers that must not be stored; docs/guides/http.md lists the others.
	DropHeaders []string

	// Isolation is the isolation level; default: the server's, normally READ COMMITTED.
	Isolation sql.IsolationLevel
	// Timeout limits one attempt, from BEGIN to COMMIT; default 30 s, -1 none. The deadline of the request's context
	// applies too; its cancellation does not. It is also how long a key stays in progress if the host vanishes, unless
	// idle_in_transaction_session_timeout is set.
	Timeout time.Duration
	// MaxRetries is the number of retries after a serialization failure or deadlock, before a 503; default 3, -1 none.
	MaxRetries int
	// Backoff is the wait before each retry; default 10 ms doubling to 1 s.
	Backoff outbox.Backoff
	// OnBegin runs first in each transaction, for SET LOCAL or a tenant's search_path; default none. An error results in a
	// 503.
	OnBegin func(ctx context.Context, r *http.Request) error
}

func (c *Config) setDefaults() {
	fill := func(d *time.Duration, standard time.Duration) {
		if *d == 0 {
			*d = standard
		}
	}
	fill(&c.Retention, 24*time.Hour)
	fill(&c.Wait, 5*time.Second)
	fill(&c.Timeout, 30*time.Second)
	if c.Methods == nil {
		c.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if c.Route == nil {
		c.Route = func(r *http.Request) string { return r.URL.EscapedPath() }
	}
	if c.MaxBody == 0 {
		c.MaxBody = 1 << 20
	}
	if c.MaxResponse == 0 {
		c.MaxResponse = 1 << 20
	}
	if c.MaxRetries == 0 {
		c.MaxRetries = 3
	}
	c.Backoff = outbox.Backoff(core.Backoff(c.Backoff).WithDefaults(10*time.Millisecond, time.Second))
}

func (c Config) validate() error {
	switch c.Isolation {
	case sql.LevelDefault, sql.LevelReadUncommitted, sql.LevelReadCommitted,
		sql.LevelRepeatableRead, sql.LevelSnapshot, sql.LevelSerializable:
	default:
		return fmt.Errorf("Config.Isolation is %s, which Postgres does not have", c.Isolation)
	}
	for _, method := range c.Methods {
		if method == "" || len(method) > maxMethodBytes || method != strings.ToUpper(method) {
			return fmt.Errorf("Config.Methods has %q: use names of methods in capitals, of at most %d bytes",
				method, maxMethodBytes)
		}
	}
	switch {
	case c.Tenant == nil:
		return errors.New("Config.Tenant is required: without it a client that guesses a key would get another " +
			"client's response; in a service with a single client let it return an empty string")
	case c.Retention < time.Second:
		return fmt.Errorf("Config.Retention is %s: use 1s or more, or 0 for 24 h", c.Retention)
	case c.Retention < c.Timeout:
		return fmt.Errorf("Config.Retention is %s, less than Config.Timeout, %s: it counts from the start of a "+
			"request, so a request that waited for a slow one would be carried out again: use more",
			c.Retention, c.Timeout)
	case c.MaxBody < 0:
		return fmt.Errorf("Config.MaxBody is %d: use 0 for 1 MiB, or more", c.MaxBody)
	case c.MaxResponse < 0:
		return fmt.Errorf("Config.MaxResponse is %d: use 0 for 1 MiB, or more", c.MaxResponse)
	case c.Wait < -1:
		return fmt.Errorf("Config.Wait is %s: use -1 for none", c.Wait)
	case c.Timeout < -1:
		return fmt.Errorf("Config.Timeout is %s: use -1 for none", c.Timeout)
	case c.MaxRetries < -1:
		return fmt.Errorf("Config.MaxRetries is %d: use -1 for none", c.MaxRetries)
	}
	return core.Backoff(c.Backoff).Validate("Config.Backoff")
}
