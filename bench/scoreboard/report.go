package main

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// result is the result of one scenario with one system.
type result struct {
	before, under     float64 // first arrivals per second
	usual, late       time.Duration
	silence, caughtUp time.Duration
	lost              int
	twice, dead, size int64
}

func (l *ledger) result(o options) (r result) {
	begins, ends := int64(o.baseline), int64(o.baseline+o.stress)
	var usual, late, came []int64
	for i := range l.committed {
		c, a := l.committed[i].Load(), l.arrived[i].Load()
		if a != 0 {
			came = append(came, a)
		}
		switch {
		case c != 0 && a == 0:
			r.lost++
		case c == 0:
		case a < begins:
			usual = append(usual, max(a-c, 0))
		case c < ends:
			late = append(late, max(a-c, 0))
			r.caughtUp = max(r.caughtUp, time.Duration(a-ends))
		}
		if a != 0 && a < begins {
			r.before++
		} else if a != 0 && a < ends {
			r.under++
		}
	}
	r.before, r.under = r.before/o.baseline.Seconds(), r.under/o.stress.Seconds()
	r.usual, r.late = percentile(usual, 0.5), percentile(late, 0.99)
	slices.Sort(came)
	before, over := begins, ends+int64(o.recovery) // nothing is produced later
	for _, at := range append(came, over) {
		if at = min(at, over); at > begins {
			r.silence, before = max(r.silence, time.Duration(at-before)), at
		}
	}
	r.twice = l.twice.Load()
	return r
}

func percentile(list []int64, p float64) time.Duration {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return time.Duration(list[int(math.Ceil(p*float64(len(list))))-1])
}

const format = "%-22s %-7s %7s %7s %8s %8s %8s %9s %5s %6s %7s %6s\n"

func heading() string {
	return fmt.Sprintf(format, "scenario", "system", "before", "under", "p50", "p99", "silence", "caught up", "lost",
		"twice", "dead", "MB")
}

const legend = `
before, under  messages per second that were handled for the first time
p50, p99       from commit to handler: the median of what came before the stress, and of 100 messages that were
               committed until its end and came later the slowest but one
silence        the longest time in which nothing came, from the begin of the stress to the last message that is produced
caught up      from the end of the stress until all had come that was committed before it
lost, twice    never handled within two minutes; handled again
dead, MB       rows that vacuum has not cleaned, and the size of the table with its indexes, at the end`

func (r result) line(scenario, system string) string {
	ms := func(d time.Duration) string {
		if d < 10*time.Second {
			return fmt.Sprintf("%d ms", d.Milliseconds())
		}
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	caughtUp := ms(r.caughtUp)
	if r.lost > 0 {
		caughtUp = "never"
	}
	return fmt.Sprintf(format, scenario, system, fmt.Sprintf("%.0f", r.before), fmt.Sprintf("%.0f", r.under), ms(r.usual),
		ms(r.late), ms(r.silence), caughtUp, fmt.Sprint(r.lost), fmt.Sprint(r.twice), fmt.Sprint(r.dead),
		fmt.Sprintf("%.1f", float64(r.size)/1e6))
}
