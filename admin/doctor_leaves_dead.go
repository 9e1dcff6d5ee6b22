package admin

import (
	"context"
	"fmt"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/leaves"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const (
	manyDeadLeaves  = 8 // with so many more than are needed, statements that are planned over all of them get slower
	deadLeavesNamed = 5
)

// deadLeaves finds the leaves that rolls would drop if they had no dead messages. They are small, but there is one more
// each time that a leaf gets a dead message which nobody acts on.
func (e *doctorRun) deadLeaves(ctx context.Context, p partitions) error {
	behind := p.Leaves[:max(0, p.Current()-dropBehind)]
	var ranges []leaves.Range
	for _, l := range behind {
		ranges = append(ranges, l.Range)
	}
	first, below := leaves.Arrays(ranges)
	var n, dead int64
	var list []string
	err := e.rows(ctx, []any{&n, &dead}, func() {
		c := Count{N: min(dead, mostPutBack), More: dead > mostPutBack}
		list = append(list, fmt.Sprintf("%s has %s", behind[n-1].SQL, c))
	}, sqltext.LeafDead, first, below, int64(mostPutBack+1))
	if err != nil || len(list) == 0 {
		return err
	}
	s, what := Info, "1 leaf"
	if len(list) > 1 {
		what = fmt.Sprintf("%d leaves", len(list))
	}
	if len(list) >= manyDeadLeaves {
		s = Warning
	}
	if more := len(list) - deadLeavesNamed; more > 0 {
		list = append(list[:deadLeavesNamed], fmt.Sprintf("%d more leaves have some", more))
	}
	e.find("leaves_dead", s, fmt.Sprintf("dead messages keep %s from being dropped: %s", what, strings.Join(list, ", ")),
		"requeue or discard them; once they are settled for as long as the retention, a roll drops the leaves"+
			e.command("messages", "list", "--state", "dead"))
	return nil
}
