package admin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const (
	defaultRetention = 7 * 24 * time.Hour // as forwarder.Config has it
	cleanLate        = time.Hour
)

// checkRetention looks whether what is old goes.
func (e *exam) checkRetention(ctx context.Context) error {
	if !e.counted {
		return nil // for how long somebody means to keep it is not known
	}
	var oldest float64
	if err := e.rows(ctx, []any{&oldest}, func() {}, sqltext.DoctorOldest, int64(looked)); err != nil {
		return err
	}
	keep, alive := time.Duration(0), slices.ContainsFunc(e.members, member.alive)
	for _, m := range e.members { // also one that is not alive says what was meant, if none is
		if m.alive() || !alive {
			keep = max(keep, cmp.Or(m.says.Retention, defaultRetention))
		}
	}
	age := seconds(oldest)
	evidence := fmt.Sprintf("table %s has messages that were published %s ago", e.db.Render("{outbox}"), span(age))
	cure := "run a forwarder, and see in its log whether it may delete; or, if they are not meant to be kept for longer, call admin.Clean with OutboxRetention "
	if alive && keep <= 0 {
		cure = "call admin.Clean once, with OutboxRetention "
		evidence += "; the forwarders that are alive delete only what they publish themselves (Retention -1)"
	}
	if keep <= 0 {
		keep = defaultRetention
	} else {
		evidence += fmt.Sprintf(", and is to keep them for %s", keep)
	}
	if !alive {
		evidence += "; no forwarder is alive to delete them"
	}
	if age > keep+cleanLate {
		e.find("retention", Warning, evidence, cure+keep.String()+e.command("clean --outbox", keep.String()))
	}
	return nil
}

// checkConnections looks at how many connections there are, and how many may be needed.
func (e *exam) checkConnections(ctx context.Context) error {
	var most, used, databaseMost, databaseUsed int64
	err := e.rows(ctx, []any{&most, &used, &databaseMost, &databaseUsed}, func() {}, sqltext.DoctorConnections)
	if err != nil {
		return err
	}
	for _, l := range []struct {
		what, setting string
		used, most    int64
	}{
		{"the server", "max_connections (ALTER SYSTEM, and a restart)", used, most},
		{"the database", "its limit (ALTER DATABASE ... CONNECTION LIMIT)", databaseUsed, databaseMost},
	} {
		if l.most >= 0 && l.used*10 >= l.most*9 {
			s := Warning
			if l.used >= l.most {
				s = Critical
			}
			e.find("connections", s, fmt.Sprintf("%s has %d of at most %d connections; a forwarder that loses its own may find none, and loses its lease", l.what, l.used, l.most),
				"let pools be smaller, put a pooler in between, or raise "+l.setting)
		}
	}
	need, pools, seen := int64(0), 0, map[string]bool{}
	for _, m := range e.members {
		if !m.alive() {
			continue
		}
		need += int64(m.says.Beside)
		if !seen[m.says.Pool] {
			seen[m.says.Pool] = true
			pools++
			need += int64(m.says.PoolConns)
		}
	}
	if need > most {
		e.find("connections", Warning, fmt.Sprintf("the pools of the forwarders that are alive (%d) may open %d connections with those beside them, and the server takes %d", pools, need, most),
			"let pools be smaller, put a pooler in between, or raise max_connections")
	}
	return nil
}

// checkBroker asks the brokers, and whether there is anything to send again of what they may lose.
func (e *exam) checkBroker(ctx context.Context) error {
	if e.stats == nil || len(e.brokers) == 0 {
		return nil
	}
	published := map[string]time.Time{}
	err := e.collect(ctx, func(rows drive.Rows) error {
		var topic string
		var last time.Time
		err := rows.Scan(&topic, &last)
		published[topic] = last
		return err
	}, sqltext.PublishedTopics)
	if err != nil {
		return err
	}
	topics := slices.Collect(maps.Keys(published))
	for _, t := range e.stats.Topics {
		topics = append(topics, t.Topic)
	}
	slices.Sort(topics)
	topics = slices.Compact(topics)
	loses, nowhere := false, maps.Clone(published)
	for _, b := range e.brokers {
		risks, missing, err := b.Check(ctx, topics)
		if err != nil {
			if ctx.Err() != nil {
				return err
			}
			e.find("broker", Critical, "the broker could not be asked: "+err.Error(),
				"mend what the error says; meanwhile messages wait, and are charged no attempt if the publisher knows its errors")
			clear(nowhere) // it may have them
			continue
		}
		maps.DeleteFunc(nowhere, func(topic string, _ time.Time) bool { return !slices.Contains(missing, topic) })
		for _, r := range risks {
			loses = loses || r.Severity > Info
			e.find("broker", r.Severity, r.Evidence, r.Cure)
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(nowhere)) {
		loses = true
		e.find("broker", Warning, fmt.Sprintf("no broker that was asked has topic %q, to which messages were published, the last "+
			"one at %s: what it acknowledged is gone, as when a JetStream stream in memory vanishes in a restart, or somebody has "+
			"deleted it", topic, published[topic].UTC().Format(time.RFC3339)),
			"make the topic anew, a stream with file storage, and have sent again what is still kept (outboxctl messages replay); "+
				"if it goes to another broker, have that one asked too")
	}
	for _, m := range e.members {
		if loses && m.alive() && m.says.Retention == -1 {
			e.find("retention", Critical, fmt.Sprintf("%s deletes messages as they are published, and the broker may lose what it acknowledged: nothing could be sent again", m),
				"mend the broker as the findings above say, or set forwarder.Config.Retention to longer than it takes to notice")
		}
	}
	return nil
}
