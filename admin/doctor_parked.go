package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/parked"
)

const (
	// longParked is how long a key may be parked without a warning: what parked it may be over soon.
	longParked = 10 * time.Minute
	// undelivered is how long a process may take to look for what is parked.
	undelivered = 2 * time.Minute
)

// checkParked looks at the keys that subscribers of Kafka have parked.
func (e *exam) checkParked(ctx context.Context) error {
	keys, err := e.parkedKeys(ctx)
	if errors.Is(err, parked.ErrHidden) {
		e.find("parked", Info, "this role may not read the tables of parked keys",
			"grant it what schema.Roles grants a reader, with DBConfig.Tables of the outbox and _parked")
		return nil
	}
	if err != nil {
		return err
	}
	type reader struct{ group, topic string }
	var readers []reader
	of := map[reader][]ParkedKey{}
	for _, k := range keys {
		r := reader{k.Group, k.Topic}
		if of[r] == nil {
			readers = append(readers, r)
		}
		of[r] = append(of[r], k)
	}
	for _, r := range readers {
		e.parked(fmt.Sprintf("of topic %q, parked by consumer group %q", r.topic, r.group), of[r])
	}
	return nil
}

// parked looks at the keys of one group and topic, the oldest first.
func (e *exam) parked(whose string, keys []ParkedKey) {
	total := int64(0)
	for _, k := range keys {
		total += k.Messages
	}
	oldest := keys[0]
	what := fmt.Sprintf("%s %s: %s, the oldest for %s", count(len(keys), "key"), whose, count(int(total), "message"),
		span(oldest.Age))
	if !oldest.Delivered && oldest.Age >= undelivered {
		e.find("parked_undelivered", Critical, what+": no running process delivers them",
			"start the service with the same ConsumerGroup and SubscriberConfig.Park; leave Park on until nothing is parked")
		return
	}
	severity := Info
	if oldest.Age >= longParked {
		severity = Warning
	}
	if oldest.LastError != "" {
		what += fmt.Sprintf(", after %s with %q", count(oldest.Attempts, "attempt"), oldest.LastError)
	}
	give := ""
	if park, err := e.db.Park(); err == nil && oldest.rowKey != "" {
		of := exam{Admin: &Admin{db: park}}
		give = "; to give up the first message of a key, discard it in the inbox, where it is failing" +
			e.command("inbox list --state failing") + "; if it is not there, skip it" +
			of.command("keys skip --key", shell(oldest.rowKey), "--reason WHY")
	}
	e.find("parked", severity, what, "fix what the error names: they are retried by themselves, in order, and the keys "+
		"are read from Kafka again when all are handled"+give)
}

// count writes how many there are of something.
func count(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}
