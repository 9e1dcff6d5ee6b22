package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/broker"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

var redriveTopic = Verb{Name: "redrive_topic", States: map[Table][]State{Inbox: {Dead}}}

// TopicRedrive configures RedriveTopic. Topic is required.
type TopicRedrive struct {
	// Topic has the dead letters. Required.
	Topic string
	// MaxRedrives skips messages that were redriven so often and died again; default 3. Raise it for those whose
	// cause was fixed late.
	MaxRedrives int
}

// maxBatchBytes bounds the payloads that are in memory at once, but for one that is larger.
const maxBatchBytes = 8 << 20

// RedriveTopic reads the dead letters that a topic of the broker holds, and publishes them again as the messages that
// they were, as Redrive does for those that the outbox has. Each goes through the outbox, and is noted in the inbox in
// the same transaction, under the consumer "redrive/" and the topic: it is redriven once, and a call that was cut off
// is gone on with by another, for as long as the inbox remembers. Letters of a message that is not dead any more are
// skipped; so are those of the outbox's own messages, which Requeue sends.
//
// The filter is for the inbox: Consumer, ErrorGroup, ErrorContains, and After and Before for the broker's time of the
// letter. Letters whose message came from Topic itself, or was redriven MaxRedrives times, are counted in
// Result.Looping; what is no letter in Result.NoLetter. Nothing is deleted from the topic. Try it with Act.DryRun
// first.
//
// It returns what acts return, errors of the broker, and with them what was done before.
func (a *Admin) RedriveTopic(
	ctx context.Context, from broker.MessageReader, cfg TopicRedrive, act Act,
) (r Result, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", redriveTopic.Name, err)
		}
	}()
	s, _, err := a.check(redriveTopic, &act)
	switch {
	case err != nil:
	case from == nil:
		err = invalid("the broker.MessageReader is nil: use kafka.NewTopicReader or nats.NewTopicReader")
	case cfg.Topic == "" || len(cfg.Topic) > core.MaxTopicBytes || !text.Storable(cfg.Topic):
		err = invalid("admin: TopicRedrive.Topic must be UTF-8 without NUL, of 1 to %d bytes", core.MaxTopicBytes)
	case cfg.MaxRedrives < 0:
		err = invalid("admin: TopicRedrive.MaxRedrives is %d: use 1 or more, or 0 for 3", cfg.MaxRedrives)
	case len(act.Filter.IDs) > 0:
		err = invalid("admin: Filter.IDs name messages of the inbox: use Redrive")
	}
	if err != nil {
		return r, err
	}
	if cfg.MaxRedrives == 0 {
		cfg.MaxRedrives = 3
	}
	d, err := a.doing(ctx, redriveTopic, act, s, &r)
	if err != nil {
		return r, err
	}
	if !act.DryRun {
		noted := act
		noted.Filter.Topic = cfg.Topic
		if r.AuditID, err = a.begin(ctx, redriveTopic.Name, noted); err != nil {
			return r, err
		}
	}
	t := &redriving{doing: d, cfg: cfg}
	err = from.Messages(ctx, cfg.Topic, func(m *message.Message, at time.Time) error { return t.take(ctx, m, at) })
	if errors.Is(err, errEnough) {
		err = nil
	}
	if err == nil {
		err = t.flush(ctx)
	}
	if act.DryRun {
		if r.Matched.More = r.Matched.N > dryCount; !r.Matched.More {
			d.tried(t.counted)
		}
		return r, err
	}
	if err == nil {
		a.logger.Info("act of an operator", watermill.LogFields{
			"action": redriveTopic.Name, "actor": act.Actor, "touched": r.Touched, "audit_id": r.AuditID,
		})
	}
	return r, a.end(ctx, r.AuditID, err)
}

// Cause: Act.Limit messages were redriven, so that the reading ends early.
// Cure: none is needed.
var errEnough = errors.New("enough messages were redriven")

// redriving is one RedriveTopic.
type redriving struct {
	*doing
	cfg     TopicRedrive
	counted []place // by a dry run, up to one more than it notes

	// A batch.
	letters, keys, metadata []string
	payloads                [][]byte
	bytes                   int
}

func (t *redriving) place(letter string) place {
	return place{Owner: "redrive/" + t.cfg.Topic, Name: letter}
}

// take looks at a message of the topic, and adds it to the batch if it is a letter that is meant.
func (t *redriving) take(ctx context.Context, m *message.Message, at time.Time) error {
	t.result.Compared++
	if t.act.Progress != nil && t.result.Compared%1000 == 0 {
		t.act.Progress(ctx, *t.result)
	}
	core.DropHeaders(m)
	origin := m.Metadata.Get("topic_poisoned")
	metadata, err := json.Marshal(m.Metadata)
	if err != nil || m.UUID == "" || origin == "" || m.Metadata.Get("subscriber_poisoned") == "outbox" ||
		len(origin) > core.MaxTopicBytes || len(m.UUID) > core.MaxUUIDBytes || !text.Storable(m.UUID) ||
		!text.Storable(string(metadata)) || strings.Contains(string(metadata), `\u0000`) {
		t.result.NoLetter++
		return nil
	}
	if !t.fits(m, at) {
		return nil
	}
	redriven, _ := strconv.Atoi(m.Metadata.Get(core.MetadataRedriven))
	if origin == t.cfg.Topic || redriven >= t.cfg.MaxRedrives {
		t.result.Looping++
		return nil
	}
	key := m.Metadata.Get(core.MetadataKey)
	if key == "" {
		key, _ = core.AggregateKey(origin, m)
	}
	if len(key) > core.MaxKeyBytes {
		key = ""
	}
	t.letters, t.keys = append(t.letters, m.UUID), append(t.keys, key)
	t.payloads, t.metadata = append(t.payloads, m.Payload), append(t.metadata, string(metadata))
	if t.bytes += len(m.Payload) + len(metadata); len(t.letters) < t.doing.cfg.BatchSize && t.bytes < maxBatchBytes {
		return nil
	}
	return t.flush(ctx)
}

// fits says whether a letter is one that is meant.
func (t *redriving) fits(m *message.Message, at time.Time) bool {
	f, reason := t.act.Filter, m.Metadata.Get("reason_poisoned")
	consumer := m.Metadata.Get("consumer_poisoned")
	if consumer == "" {
		consumer = m.Metadata.Get("service_poisoned") + "/" + m.Metadata.Get("handler_poisoned")
	}
	switch {
	case f.Consumer != "" && f.Consumer != consumer,
		f.ErrorGroup != "" && f.ErrorGroup != groupID(reason),
		!strings.Contains(strings.ToLower(reason), strings.ToLower(f.ErrorContains)),
		!f.After.IsZero() && at.Before(f.After), !f.Before.IsZero() && !at.Before(f.Before):
		return false
	case t.asked.only != nil:
		return t.asked.only[t.place(m.UUID).digest()]
	}
	return t.act.Preview == "" || !at.After(t.asked.at) // what came since was not counted
}

// flush redrives the batch, or counts it.
func (t *redriving) flush(ctx context.Context) error {
	if len(t.letters) == 0 {
		return nil
	}
	if t.left <= 0 {
		return errEnough
	}
	n := int(min(int64(len(t.letters)), t.left))
	args := []any{t.letters[:n], t.keys[:n], t.payloads[:n], t.metadata[:n]}
	note := t.place("").Owner
	t.letters, t.keys, t.payloads, t.metadata, t.bytes = nil, nil, nil, nil, 0
	if t.act.DryRun {
		return t.collect(ctx, func(rows drive.Rows) error {
			var letter string
			err := rows.Scan(&letter)
			t.result.Matched.N++
			t.left--
			if len(t.counted) <= dryCount {
				t.counted = append(t.counted, t.place(letter))
			}
			return err
		}, sqltext.LettersToRedrive, append(args, note)...)
	}
	touched, err := t.number(ctx, sqltext.RedriveLetters, append(args, t.result.AuditID, note)...)
	if err != nil {
		return err
	}
	t.result.Matched.N += int64(n)
	t.result.Touched += touched
	t.left -= touched
	t.db.Wake()
	if t.act.Progress != nil {
		t.act.Progress(ctx, *t.result)
	}
	return nil
}
