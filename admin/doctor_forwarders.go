package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/facts"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/schema"
)

// member is a forwarder's row, with the facts that the forwarder wrote about itself.
type member struct {
	id, name, scope string
	topics          []string
	left            time.Duration // until its lease expires
	waits           time.Duration // for others to stop
	lanes           int
	says            facts.Forwarder
}

func (m member) alive() bool { return m.left > 0 }

// reads reports whether the forwarder is alive and publishes a topic.
func (m member) reads(topic string) bool {
	return m.alive() && (len(m.topics) == 0 || slices.Contains(m.topics, topic))
}

func (m member) String() string { return fmt.Sprintf("forwarder %q (scope %s)", m.name, m.scope) }

// checkForwarders checks the state and settings of each forwarder.
func (e *doctorRun) checkForwarders(ctx context.Context) error {
	var m member
	var topics, says string
	var left, waits float64
	var failed error
	err := e.rows(ctx, []any{&m.id, &m.name, &m.scope, &topics, &left, &waits, &m.lanes, &says}, func() {
		m.left, m.waits, m.topics, m.says = seconds(left), seconds(waits), nil, facts.Forwarder{}
		if err := json.Unmarshal([]byte(topics), &m.topics); err != nil {
			failed = err
		}
		_ = json.Unmarshal([]byte(says), &m.says) // another version may write other facts
		e.members = append(e.members, m)
	}, sqltext.DoctorForwarders)
	if err != nil || failed != nil {
		e.members = nil
		return errors.Join(err, failed)
	}
	e.counted = true
	for _, m := range e.members {
		switch {
		case !m.alive():
			if slices.ContainsFunc(e.members, func(o member) bool { return o.alive() && o.scope == m.scope }) {
				e.find("forwarder_vanished", Info,
					fmt.Sprintf("%s stopped without releasing its lease, which expired %s ago; others took over its lanes", m,
						span(-m.left)),
					"find out why its process ended; its row is deleted within the hour, or now: DELETE FROM "+
						e.db.Render("{forwarders}")+" WHERE expires_at < now() AND id = "+literal(m.id))
			}
		case m.waits > brief:
			e.find("forwarder_waits", byAge(m.waits),
				fmt.Sprintf("%s has published nothing for %s: it waits for forwarders with other topics to stop: %s", m,
					span(m.waits), e.ahead(m)),
				"stop those, or give all of them the same Config.Topics")
		}
		if m.alive() {
			e.setUp(m)
		}
	}
	e.consumers()
	return e.grants(ctx)
}

// consumers reports services that use the same consumer name, so that each message is handled by only one of them.
func (e *doctorRun) consumers() {
	type use struct{ programs, topics []string }
	uses := map[string]*use{}
	for _, m := range e.members {
		for consumer, topics := range m.says.Consumers {
			if !m.alive() {
				continue
			}
			if uses[consumer] == nil {
				uses[consumer] = &use{}
			}
			u := uses[consumer]
			u.programs, u.topics = append(u.programs, m.says.Program), append(u.topics, topics...)
		}
	}
	for _, consumer := range slices.Sorted(maps.Keys(uses)) {
		u := uses[consumer]
		slices.Sort(u.programs)
		slices.Sort(u.topics)
		u.programs, u.topics = slices.Compact(u.programs), slices.Compact(u.topics)
		switch {
		case len(u.programs) > 1:
			e.find("consumers", Critical,
				fmt.Sprintf("programs %s handle messages as the same consumer %q: a message that reaches all of them is handled "+
					"by only one",
					strings.Join(u.programs, " and "), consumer),
				"give each service a middleware.StackConfig.Service of its own (or InboxConfig.Service); "+
					"messages that were skipped stay unhandled")
		case len(u.topics) > 1:
			e.find("consumers", Info,
				fmt.Sprintf("consumer %q handles several topics (%s): of messages with the same UUID only the first is handled",
					consumer, strings.Join(u.topics, ", ")),
				"leave middleware.InboxConfig.Consumer empty, or give each handler its own, unless this is intended")
		}
	}
}

// ahead names the forwarders that a forwarder waits for.
func (e *doctorRun) ahead(m member) string {
	var names []string
	for _, o := range e.members {
		if o.alive() && o.waits == 0 && o.id != m.id {
			names = append(names, o.String())
		}
	}
	return strings.Join(names, ", ")
}

// grants reports the privileges that the roles of forwarders lack. They need not be the role of this connection.
func (e *doctorRun) grants(ctx context.Context) error {
	of := map[string]member{} // one forwarder of each role
	for _, m := range e.members {
		if _, known := of[m.says.Role]; !known && m.says.Role != "" {
			of[m.says.Role] = m
		}
	}
	if len(of) == 0 {
		return nil
	}
	ctx, cancel := e.bound(ctx)
	defer cancel()
	roles := slices.Sorted(maps.Keys(of))
	problems, err := schema.Check(ctx, (*outbox.DB)(e.db), schema.CheckConfig{Roles: roles})
	if err != nil && !errors.Is(err, schema.ErrSchemaChanged) {
		return err
	}
	for _, p := range problems {
		if m, known := of[p.Role]; known && !p.Warning {
			e.find("privileges", Critical, fmt.Sprintf("%s %s, the role of %s", p.Object, p.Found, m),
				"as the owner of the tables: "+p.Cure)
		}
	}
	return nil
}

// setUp checks the settings of a forwarder.
func (e *doctorRun) setUp(m member) {
	f := m.says
	if f.Blind {
		e.find("classify", Info, fmt.Sprintf("the publisher of %s returns errors that are not classified: an outage of its "+
			"broker is recognised only when all messages of a topic fail", m),
			"use the publishers of package kafka or nats, set forwarder.Config.Classify, or return a "+
				"forwarder.PublishError from the publisher")
	}
	need := f.PoolNeeds
	if len(f.Consumers) > 0 { // handlers share the pool; other users of the pool are unknown
		need++
	}
	if f.PoolConns > 0 && f.PoolConns < need {
		e.find("pool", Warning, fmt.Sprintf("the pool of %s has %s, and the forwarder alone uses up to %d of them: "+
			"it waits for connections, and so do handlers that share the pool", m, connections(f.PoolConns), f.PoolNeeds),
			fmt.Sprintf("give the pool %s, and one more for each handler that runs at the same time; "+
				"or give the forwarder a pool of its own, with %d", connections(f.PoolNeeds), f.PoolNeeds))
	}
	e.handlers(m)
	if f.PublishTimeout == -1 {
		e.find("timeouts", Warning,
			fmt.Sprintf("%s does not limit the time of a publish: a hung publish blocks its key and one slot "+
				"of Concurrency forever", m),
			"set forwarder.Config.PublishTimeout above the slowest publish; its default is 30s")
	}
	if f.Hung > 0 {
		e.find("timeouts", Warning,
			fmt.Sprintf("%s of %s exceeded PublishTimeout of %s and did not return: each keeps a slot of "+
				"Concurrency of its topic", publishes(f.Hung), m, f.PublishTimeout),
			"check the broker and its client; restart the process if they never return")
	}
	if f.PublishTimeout > f.CloseTimeout {
		e.find("timeouts", Info,
			fmt.Sprintf("%s allows a publish %s, but only %s at shutdown: messages in flight are then published twice", m,
				f.PublishTimeout, f.CloseTimeout),
			fmt.Sprintf("set forwarder.Config.CloseTimeout to %s or more", f.PublishTimeout))
	}
	if f.LeaseTTL > 0 && f.LeaseTTL < 3*time.Second {
		e.find("timeouts", Warning,
			fmt.Sprintf("the lease of %s lasts only %s: after a slower renewal, a process pause or a failover, others take "+
				"its lanes, and messages in flight are published twice", m, f.LeaseTTL),
			"set forwarder.Config.LeaseTTL to 3s or more; its default is 10s")
	}
	if f.Retention == -1 && len(e.brokers) == 0 {
		e.find("retention", Info, fmt.Sprintf("%s deletes messages on publish: if the broker loses acknowledged messages, "+
			"there is nothing to replay or reconcile", m),
			"if the broker may lose messages, set forwarder.Config.Retention to longer than it takes you to notice; "+
				"pass the broker to doctor to find out")
	}
}

func publishes(n int) string {
	if n == 1 {
		return "1 publish"
	}
	return fmt.Sprintf("%d publishes", n)
}

func connections(n int) string {
	if n == 1 {
		return "1 connection"
	}
	return fmt.Sprintf("%d connections", n)
}
