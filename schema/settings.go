package schema

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// liveSetting is a setting of the session.
type liveSetting struct {
	name, value, source, unit string
	role, database            string
}

// judged are the settings that Check examines. docs/run/postgresql.md explains why no others matter.
var judged = []struct {
	name     string
	ordinary string // no fault
	bad      func(c *inspection, value string) bool
	problem  bool // otherwise a warning
	found    string
}{
	{"default_transaction_read_only", "off", func(c *inspection, v string) bool { return v == "on" && !c.standby }, true,
		"nothing can be written"},
	{"client_encoding", "UTF8", func(c *inspection, v string) bool { return v != c.encoding }, true,
		"the server would alter topics, keys and metadata"},
	{"default_transaction_isolation", "read committed", always, true,
		"reads that wait for a lock would publish messages out of order, so they are refused, and other statements " +
			"fail with 40001 when two conflict"},
	{"datestyle", "ISO, MDY", func(_ *inspection, v string) bool { return !strings.HasPrefix(v, "ISO") }, true,
		"times that come as text cannot be read"},
	{"bytea_output", "hex", always, true,
		"payloads that come as text cannot be read"},
	{"extra_float_digits", "1", func(_ *inspection, v string) bool { return strings.HasPrefix(v, "-") }, true,
		"durations that come as text are rounded"},
	{"statement_timeout", "0", shorter(10_000), false,
		"the server cancels reads of a large backlog and the deletion of old rows"},
	{"transaction_timeout", "0", shorter(10_000), false,
		"the server ends handlers that take longer"},
	{"synchronous_commit", "on", func(_ *inspection, v string) bool { return v == "off" }, false,
		"a crash of the server loses what was committed just before: messages, and the effects of handlers whose " +
			"messages were acknowledged"},
	{"enable_indexscan", "on", always, false,
		"statements read whole tables"},
	{"enable_nestloop", "on", always, false,
		"plans seem so costly that each is compiled, which takes seconds"},
	{"jit_above_cost", "100000", func(_ *inspection, v string) bool {
		cost, err := strconv.ParseFloat(v, 64)
		return err == nil && cost >= 0 && cost < 100_000
	}, false, "cheap statements are compiled, which takes longer than running them"},
	{"plan_cache_mode", "auto", func(_ *inspection, v string) bool { return v == "force_generic_plan" }, false,
		"plans made without arguments may read whole tables"},
}

func always(*inspection, string) bool { return true }

func judgedNames() []string {
	names := make([]string, len(judged))
	for i, j := range judged {
		names[i] = j.name
	}
	return names
}

// hasUnusualSettings reports whether a value, in the order of judgedNames, differs from the usual one.
func hasUnusualSettings(values []string) bool {
	for i, v := range values {
		if i < len(judged) && v != judged[i].ordinary && v != "" {
			return true
		}
	}
	return false
}

// shorter finds a timeout in milliseconds below a limit; 0 means no timeout.
func shorter(bound int) func(*inspection, string) bool {
	return func(_ *inspection, v string) bool {
		ms, err := strconv.Atoi(v)
		return err == nil && ms > 0 && ms < bound
	}
}

// settings finds harmful settings of the role, the database or the session.
func (c *inspection) settings(ctx context.Context) error {
	if !c.unusualSettings {
		return nil
	}
	live := map[string]liveSetting{}
	err := drive.Collect(ctx, c.q, func(rows drive.Rows) error {
		var s liveSetting
		err := rows.Scan(&s.name, &s.value, &s.source, &s.unit, &s.role, &s.database)
		live[s.name] = s
		return err
	}, sqltext.CheckSettings, append(judgedNames(), "server_encoding"))
	if err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	c.encoding = live["server_encoding"].value
	for _, j := range judged {
		s, ok := live[j.name]
		if !ok || s.value == j.ordinary || !j.bad(c, s.value) {
			continue
		}
		object, value := "setting "+s.name, strings.TrimSpace(s.value+" "+s.unit)
		found := fmt.Sprintf("is %q, by %s: %s", value, s.origin(), j.found)
		if j.problem {
			c.denial(object, s.cure(j.ordinary), "%s", found)
			c.stop = true
		} else {
			c.warning(object, s.cure(j.ordinary), "%s", found)
		}
	}
	return nil
}

// origin returns where the setting was set.
func (s liveSetting) origin() string {
	switch s.source {
	case "user":
		return "ALTER ROLE " + sqltext.Quote(s.role)
	case "database":
		return "ALTER DATABASE " + sqltext.Quote(s.database)
	case "database user":
		return "ALTER ROLE " + sqltext.Quote(s.role) + " IN DATABASE " + sqltext.Quote(s.database)
	case "client":
		return "the connection string"
	case "session":
		return "a SET in the session"
	}
	return "the " + s.source + " of the server"
}

func (s liveSetting) cure(ordinary string) string {
	statement := "ALTER ROLE " + sqltext.Quote(s.role) + " SET " + s.name + " = '" + ordinary + "'"
	switch s.source {
	case "user", "database", "database user":
		statement = s.origin() + " RESET " + s.name
	case "client", "session":
		return "remove it there"
	}
	if s.name == "default_transaction_read_only" { // the session that changes it has it too
		return "unless it was set on purpose, change it, then reconnect: BEGIN READ WRITE; " + statement + "; COMMIT"
	}
	return "change it, then reconnect: " + statement
}
