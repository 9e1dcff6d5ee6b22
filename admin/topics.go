package admin

import (
	"context"
	"fmt"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// Pause stops forwarders from publishing a topic, and Dispatchers and Subscribers of a queue from claiming its
// messages, until Resume. They notice within two seconds; publishes and handlers in flight finish. Keys whose next
// message is of the topic wait; other topics continue. If you requeue more than 16,000 messages of one key meanwhile,
// delayed messages of some other keys wait too. Pausing a paused topic changes the reason. Pause returns ErrNoActor, an
// error that names an invalid field, or an error of the database.
func (a *Admin) Pause(ctx context.Context, topic, reason string) error {
	return a.topic(ctx, "pause", sqltext.PauseTopic, topic, reason)
}

// Resume ends a Pause. A queue finds the messages that it passed over within a few seconds, or later if the table is
// large. A topic whose broker is unreachable stays paused by its forwarders.
func (a *Admin) Resume(ctx context.Context, topic, reason string) error {
	return a.topic(ctx, "resume", sqltext.ResumeTopic, topic, reason)
}

func (a *Admin) topic(ctx context.Context, action, statement, topic, reason string) error {
	err := a.recordable(reason)
	if err == nil && topic == "" {
		err = invalid("admin: the topic is empty: name the topic")
	}
	if err == nil && (len(topic) > core.MaxTopicBytes || !text.Storable(topic)) {
		err = invalid("admin: the topic must be UTF-8 without NUL, of at most %d bytes", core.MaxTopicBytes)
	}
	if err == nil {
		err = a.exec(ctx, statement, topic, a.cfg.Actor, reason)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	return nil
}
