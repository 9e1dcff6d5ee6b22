package admin

import (
	"context"
	"fmt"
	"strings"
	"time"
)

const (
	fewAhead       = 2  // partitions; with fewer, little time is left
	manyPartitions = 32 // statements planned over all partitions pay for each one
	manyKept       = 8  // partitions beyond the needed ones
	manyDue        = 3  // partitions, if maintenance ran recently: it then finds them in use each time
	keptNamed      = 5
	runLate        = 2 * time.Hour
)

// checkPartitions checks a partitioned outbox, and whether its partitions are maintained.
func (e *doctorRun) checkPartitions(ctx context.Context) error {
	p, err := e.partitions(ctx)
	if err != nil || !p.Partitioned {
		return err
	}
	e.partitionsAhead(p)
	e.partitionsKept(p)
	if n := len(p.Partitions); n > manyPartitions {
		evidence := fmt.Sprintf("table %s has %d partitions: each statement that is planned over all of them gets slower",
			e.db.Render("{outbox}"), n)
		cure, empty := "", 0
		for _, one := range p.list {
			if one.State == partitionEmpty && !one.Default {
				empty++
			}
		}
		if empty > 0 {
			evidence += fmt.Sprintf("; %d of them are empty", empty)
			cure = "run it at a quiet time, because empty ones are dropped only while no long transaction writes; "
		}
		e.find("partitions_many", Warning, evidence, cure+"from now on make larger ones with the hourly command"+
			e.maintain(p, "--partition-size", fmt.Sprint(max(1, p.Size())*int64(n)/8)))
	}
	return nil
}

// partitionsAhead reports that partitions for the next ids are running out.
func (e *doctorRun) partitionsAhead(p partitioned) {
	if !p.Known {
		ids := e.db.Render("{outbox_id_seq}")
		e.find("partitions_ahead", Warning, fmt.Sprintf("could not check whether partitions are ahead of the ids: "+
			"role %s may not read sequence %s", p.Role, ids), "GRANT SELECT ON SEQUENCE "+ids+" TO "+p.Role)
		return
	}
	ahead := p.Ahead()
	if ahead >= fewAhead {
		return
	}
	s, evidence := Warning, fmt.Sprintf("1 partition is ahead of the last id, %d", p.Last)
	if ahead == 0 {
		s, evidence = Critical, fmt.Sprintf("no partition is ahead of the last id, %d", p.Last)
	}
	if above := p.Above(); ahead == 0 && len(above) > 0 { // for example after the sequence was set back
		next := above[0].From
		e.find("partitions_ahead", s,
			fmt.Sprintf("the next partition begins at id %d, far above the last id, %d: the default partition takes the "+
				"messages", next, p.Last),
			fmt.Sprintf("if the sequence was set back, set it past all ids: "+
				"SELECT setval('%s', (SELECT greatest(%d, max(id)) FROM %s))",
				e.db.Render("{outbox_id_seq}"), next-1, e.db.Render("{outbox}")))
		return
	}
	if end := p.End(); end > p.Last {
		evidence += fmt.Sprintf(": after %d more ids the default partition takes the messages", end-p.Last)
	} else {
		evidence += ": the default partition takes the messages"
	}
	e.find("partitions_ahead", s, evidence+p.lastError(),
		"as "+p.Owner+", make partitions now and every hour"+e.maintain(p))
}

// partitionsKept reports old partitions that are not dropped, and why.
func (e *doctorRun) partitionsKept(p partitioned) {
	var held, due []string
	for _, one := range p.list {
		switch one.State {
		case partitionHeld:
			held = append(held, one.Name+" has "+one.HeldBy())
		case partitionDue:
			due = append(due, one.Name)
		}
	}
	if s := Info; len(held) > 0 {
		if len(held) >= manyKept {
			s = Warning
		}
		e.find("partitions_held", s, "pending or dead messages keep "+count(len(held), "partition")+" from being dropped: "+
			some(held), "requeue or discard dead messages, and find out why old ones are still pending; the next run drops "+
			"the partitions"+
			e.command("outbox", "list", "--state", "dead"))
	}
	recent := len(p.runs) > 0 && p.runs[0].ended && p.runs[0].age < runLate
	if len(due) == 0 || recent && len(due) < manyDue {
		return
	}
	evidence := "nothing has maintained the partitions"
	if len(p.runs) > 0 {
		evidence = "the partitions were last maintained " + span(p.runs[0].age) + " ago"
	}
	e.find("partitions_due", Warning, evidence+", and all messages in "+count(len(due), "partition")+" were settled "+
		"more than "+
		p.keep.String()+" ago: "+some(due)+p.lastError(), "run it every hour, as "+p.Owner+
		"; if it finds them in use, end the long transaction on the outbox"+e.maintain(p))
}

// some lists the first items of a long list.
func some(list []string) string {
	if more := len(list) - keptNamed; more > 0 {
		list = append(list[:keptNamed:keptNamed], fmt.Sprintf("%d more", more))
	}
	return strings.Join(list, ", ")
}

// lastError describes the error of the last run, or the partitions that it found in use, to end a sentence.
func (p partitioned) lastError() string {
	if len(p.runs) == 0 || p.runs[0].outcome == "" {
		return ""
	}
	if used, is := strings.CutPrefix(p.runs[0].outcome, foundInUse); is {
		return "; the last run found in use: " + used
	}
	return "; the last run failed: " + p.runs[0].outcome
}

// maintain is the maintenance command, with the retention of the last run if it had one.
func (e *doctorRun) maintain(p partitioned, words ...string) string {
	if p.kept {
		words = append(words, "--retention", p.keep.String())
	}
	return e.command(append([]string{"partitions", "maintain"}, words...)...)
}
