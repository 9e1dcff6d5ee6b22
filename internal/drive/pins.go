package drive

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// pins are what a transaction must set because the role's settings are others than our statements rely on. It is found
// out once for a pool, by asking, so an ordinary role costs nothing more. If a role is altered later, the first
// statement that notices has it asked again.
type pins struct {
	asText bool // results come as text, which more settings shape

	known atomic.Pointer[pinned]
}

// pinned is what was found out: what is run in a transaction of ours, such as a statement of ours has that is outside
// of the user's, and what in those of the user's, where it must not change what his own statements mean: not even the
// order of day and month.
type pinned struct {
	ours   []string // nil = no transaction is needed
	theirs []string
}

// asked are the settings that matter, and what they must be.
var asked = []struct {
	name   string
	text   bool // it matters where results come as text
	theirs bool // it is set in the user's transactions too: the driver cannot read there what has another form
	fine   func(value string) bool
	set    string // what is run; "" = to begin a transaction is enough
}{
	{name: "default_transaction_isolation", fine: is("read committed")},
	{name: "client_encoding", theirs: true, fine: is("UTF8"), set: "set local client_encoding = 'UTF8'"},
	{name: "plan_cache_mode", fine: is("auto", "force_custom_plan"), set: "set local plan_cache_mode = 'auto'"},
	// Without nested loops a plan seems to cost a million times what it does, and so it is compiled, which takes seconds.
	{name: "enable_nestloop", fine: is("on"), set: "set local enable_nestloop = on"},
	{name: "jit_above_cost", fine: dear, set: "set local jit = off"},
	{name: "datestyle", text: true, theirs: true, fine: func(v string) bool {
		return strings.HasPrefix(v, "ISO")
	}, set: "set local datestyle = 'ISO'"},
	{name: "bytea_output", text: true, theirs: true, fine: is("hex"), set: "set local bytea_output = 'hex'"},
	{name: "extra_float_digits", text: true, fine: is("1", "2", "3"), set: "set local extra_float_digits = 1"},
}

func is(fine ...string) func(string) bool {
	return func(v string) bool {
		for _, f := range fine {
			if v == f {
				return true
			}
		}
		return false
	}
}

// leastDear is the default of jit_above_cost.
const leastDear = 100_000

// dear says whether only what costs more than most is compiled, or nothing.
func dear(cost string) bool {
	f, err := strconv.ParseFloat(cost, 64)
	return err == nil && (f < 0 || f >= leastDear)
}

var nothing = &pinned{}

// loaded returns what is known, or nil.
func (p *pins) loaded() *pinned {
	if p == nil {
		return nothing
	}
	return p.known.Load()
}

// ask is loaded by way of a statement. Several that ask at once each do so: none waits for an answer that another
// else may never get.
func (p *pins) ask(ctx context.Context, q Querier) (*pinned, error) {
	names := make([]string, 0, len(asked)+1)
	for _, a := range asked {
		names = append(names, a.name)
	}
	values := map[string]string{}
	err := Collect(ctx, q, func(rows Rows) error {
		var name string
		var value *string // NULL = this server does not have it
		err := rows.Scan(&name, &value)
		if value != nil {
			values[name] = *value
		}
		return err
	}, sqltext.SessionSettings, append(names, "server_encoding"))
	if err != nil {
		return nil, err
	}
	found := &pinned{}
	for _, a := range asked {
		value, ok := values[a.name]
		if !ok || a.fine(value) || a.text && !p.asText || a.name == "client_encoding" && value == values["server_encoding"] {
			continue
		}
		if found.ours == nil {
			found.ours = []string{}
		}
		if a.set != "" {
			found.ours = append(found.ours, a.set)
		}
		if a.theirs {
			found.theirs = append(found.theirs, a.set)
		}
	}
	p.known.Store(found)
	return found, nil
}

// doubt has the settings asked for again after an error that none of our statements has with those that are known.
func (p *pins) doubt(err error) {
	if p == nil || err == nil {
		return
	}
	switch text.SQLState(err) {
	case text.NotReadCommitted, text.NotUTF8, "40001":
		p.known.Store(nil)
	}
}
