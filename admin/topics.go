package admin

import (
	"context"
	"fmt"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// TopicAct says which topic is paused or resumed, by which actor and why.
type TopicAct struct {
	Topic  string
	Reason string
	Actor  string // default Config.Actor
}

// Pause has forwarders publish no more messages of a topic, until Resume, and a queue's Dispatchers and Subscribers
// claim none. They notice within a second or two; what is being published or handled then goes on to its end. Keys
// whose next message is of that topic wait; other topics go on. Pausing a topic that is paused changes the reason. It
// returns ErrNoActor, errors that name the field at fault, and those of the database.
func (a *Admin) Pause(ctx context.Context, p TopicAct) error {
	return a.topic(ctx, "pause", sqltext.PauseTopic, p)
}

// Resume ends a Pause. What a queue has passed meanwhile it finds when it next looks through all that it has: about
// once a second, but where that takes long after up to twenty times as long; and, where there is nothing else to do,
// not before its next poll, five seconds away at most by default. A topic whose broker cannot be reached is still
// paused by the forwarders that found that out.
func (a *Admin) Resume(ctx context.Context, p TopicAct) error {
	return a.topic(ctx, "resume", sqltext.ResumeTopic, p)
}

func (a *Admin) topic(ctx context.Context, action, statement string, p TopicAct) error {
	actor, err := a.actor(p.Actor, p.Reason)
	if err == nil && p.Topic == "" {
		err = invalid("admin: TopicAct.Topic is empty: name the topic")
	}
	if err == nil && (len(p.Topic) > outbox.MaxTopicBytes || !text.Storable(p.Topic)) {
		err = invalid("admin: TopicAct.Topic must be UTF-8 without NUL, of at most %d bytes", outbox.MaxTopicBytes)
	}
	if err == nil {
		err = a.exec(ctx, statement, p.Topic, actor, p.Reason)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	return nil
}
