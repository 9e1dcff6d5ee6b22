package admin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const shortTimeout = 10 * time.Second

// checkRoles checks the statement_timeout of the forwarders' roles.
func (e *doctorRun) checkRoles(ctx context.Context) error {
	var roles []string
	for _, m := range e.members {
		if m.says.Role != "" && m.says.Role != e.role && !slices.Contains(roles, m.says.Role) { // checkSchema covers e.role
			roles = append(roles, m.says.Role)
		}
	}
	var role string
	var timeout float64
	var here bool
	return e.rows(ctx, []any{&role, &timeout, &here}, func() {
		if t := seconds(timeout); t > 0 && t < shortTimeout {
			in := ""
			if here {
				in = " IN DATABASE " + sqltext.Quote(e.database)
			}
			e.find("statement_timeout", Warning,
				fmt.Sprintf("role %s of a forwarder has statement_timeout %s: the server cancels reads of a large backlog and "+
					"the deletion of old rows", sqltext.Quote(role), t),
				fmt.Sprintf("reset it, and restart what uses the role: ALTER ROLE %s%s RESET statement_timeout",
					sqltext.Quote(role), in))
		}
	}, sqltext.DoctorRoles, roles)
}
