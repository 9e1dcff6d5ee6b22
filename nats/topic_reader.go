package nats

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	natsgo "github.com/nats-io/nats.go"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/broker"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// TopicReaderConfig configures NewTopicReader. Its zero value connects to nats://127.0.0.1:4222.
type TopicReaderConfig struct {
	// URL is one server or several, as in PublisherConfig.
	URL string
	// Options are applied after Options(): credentials, TLS; default none.
	Options []natsgo.Option
	// JetStream sets the domain or prefix, like PublisherConfig.JetStream.ConnectOptions; default none.
	JetStream []natsgo.JSOpt
}

// TopicReader reads the contents of JetStream streams for admin.Reconcile, and their durability settings for
// admin.Doctor. It connects on first use and is safe for concurrent use.
type TopicReader struct {
	cfg    TopicReaderConfig
	logger watermill.LoggerAdapter

	mu     sync.Mutex
	conn   *natsgo.Conn // nil until first use; guarded by mu
	closed bool         // guarded by mu
}

var (
	_ broker.TopicReader = (*TopicReader)(nil)
	_ broker.Checker     = (*TopicReader)(nil)
)

// replyTimeout limits each request, and the wait for the next message of a stream.
const replyTimeout = 30 * time.Second

const connectTimeout = 5 * time.Second

// NewTopicReader returns a TopicReader. It does no I/O, and returns an error for an invalid URL. Asynchronous errors of
// the server are logged; a nil logger logs nothing.
func NewTopicReader(cfg TopicReaderConfig, logger watermill.LoggerAdapter) (*TopicReader, error) {
	if cfg.URL == "" {
		cfg.URL = natsgo.DefaultURL
	}
	if err := checkURL("TopicReaderConfig", cfg.URL); err != nil {
		return nil, err
	}
	return &TopicReader{cfg: cfg, logger: core.RedactingLogger(logger)}, nil
}

// Close closes the connection. Calls in flight fail. It may be called several times.
func (l *TopicReader) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.conn != nil {
		l.conn.Close()
	}
	return nil
}

// connect waits up to connectTimeout for a server. It ignores ctx, because the client's Connect takes none.
func (l *TopicReader) connect(ctx context.Context) (natsgo.JetStreamContext, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return nil, outbox.ErrClosed
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case l.conn == nil:
		conn, err := natsgo.Connect(l.cfg.URL, slices.Concat(logging(l.logger), Options(),
			[]natsgo.Option{natsgo.RetryOnFailedConnect(false), natsgo.Timeout(connectTimeout)}, l.cfg.Options)...)
		if err != nil {
			return nil, fmt.Errorf("nats: connect: %w", err)
		}
		l.conn = conn
	}
	js, err := l.conn.JetStream(slices.Concat([]natsgo.JSOpt{natsgo.MaxWait(replyTimeout)}, l.cfg.JetStream)...)
	if err != nil {
		return nil, fmt.Errorf("nats: JetStream: %w", err)
	}
	return js, nil
}

// stream returns the stream of a topic.
func stream(ctx context.Context, js natsgo.JetStreamContext, topic string) (*natsgo.StreamInfo, error) {
	name, err := js.StreamNameBySubject(topic, natsgo.Context(ctx))
	if err != nil {
		return nil, err
	}
	return js.StreamInfo(name, natsgo.Context(ctx))
}

// Check returns the topics whose streams may lose acknowledged messages, and the topics without a stream. Clients
// cannot see how often a server syncs to disk; the default is every two minutes.
func (l *TopicReader) Check(ctx context.Context, topics []string) (risks []broker.Risk, missing []string, err error) {
	js, err := l.connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	streams := map[string]bool{}
	for _, topic := range topics {
		if !isLiteral(topic) {
			missing = append(missing, topic)
			continue
		}
		limited, cancel := context.WithTimeout(ctx, replyTimeout)
		info, err := stream(limited, js, topic)
		cancel()
		if errors.Is(err, natsgo.ErrNoMatchingStream) {
			missing = append(missing, topic)
			continue
		}
		if err != nil {
			return risks, missing, fmt.Errorf("nats: stream of topic %q: %w", topic, err)
		}
		if !streams[info.Config.Name] {
			streams[info.Config.Name] = true
			risks = append(risks, judge(info.Config)...)
		}
	}
	return risks, missing, nil
}

func judge(c natsgo.StreamConfig) (risks []broker.Risk) {
	name := "'" + strings.ReplaceAll(c.Name, "'", `'\''`) + "'" // quoted for a shell
	say := func(s broker.Severity, evidence, cure string) {
		risks = append(risks, broker.Risk{
			Severity: s, Evidence: fmt.Sprintf("JetStream stream %q %s", c.Name, evidence), Cure: cure,
		})
	}
	switch {
	case c.Storage == natsgo.MemoryStorage:
		say(broker.Critical, "is in memory: a restart of its servers loses acknowledged messages",
			"its storage cannot be changed: when everything in it is consumed, delete it, and create it with file "+
				"storage")
	case c.Replicas < 2:
		say(broker.Warning, "has one replica: a power cut loses messages that its server acknowledged since its last sync "+
			"to disk, by default two minutes",
			"set sync_interval: always in the server's jetstream block (this cannot be seen from here), "+
				"or give it replicas on other servers: nats stream edit "+name+" --replicas 3")
	}
	if c.Discard == natsgo.DiscardOld && c.Retention == natsgo.LimitsPolicy && (c.MaxMsgs > 0 || c.MaxBytes > 0) {
		say(broker.Info, "drops its oldest messages when it is full", "if consumers may fall behind that far, "+
			"make it refuse new messages, which then stay in the outbox: nats stream edit "+name+" --discard new")
	}
	return risks
}

// Each calls fn with the UUID of each message of a topic that its stream stored at or after a time, by the server's
// clock, and still holds. Messages without a UUID are skipped. It stops and returns the error if fn fails. It returns
// an error if the topic has no stream, or if messages may have been deleted on purpose, by consumption, age or limits;
// because of limits only after fn was called with all messages. Payloads are not read.
func (l *TopicReader) Each(ctx context.Context, topic string, after time.Time, fn func(uuid string) error) error {
	js, err := l.connect(ctx)
	if err != nil {
		return err
	}
	if !isLiteral(topic) {
		return fmt.Errorf("nats: topic %q: %w", topic, natsgo.ErrBadSubject)
	}
	limited, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	info, err := stream(limited, js, topic)
	if err != nil {
		return fmt.Errorf("nats: stream of topic %q: %w", topic, err)
	}
	name, keeps := info.Config.Name, info.Config.MaxAge
	if info.Config.Retention != natsgo.LimitsPolicy {
		return fmt.Errorf("nats: stream %q deletes consumed messages (%s), which look like lost ones",
			name, info.Config.Retention)
	}
	if keeps > 0 && after.Before(time.Now().Add(-keeps)) {
		return fmt.Errorf("nats: stream %q deletes messages after %s, and %s is longer ago: missing messages may "+
			"have been deleted this way; compare only later messages (Filter.After)",
			name, keeps, after.UTC().Format(time.RFC3339))
	}
	last, err := lastMessage(limited, js, name, topic)
	if err != nil {
		return err
	}
	var n int64
	if last.Sequence > 0 && !last.Time.Before(after) {
		n, err = l.read(ctx, js, name, topic, after, last.Sequence, func(h natsgo.Header) error {
			if uuid := uuidOf(h); uuid != "" {
				return fn(uuid)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return whole(ctx, js, name, topic, after, n)
}

// lastMessage returns the last message of a topic from the stream's leader, with sequence 0 if the topic is empty.
func lastMessage(ctx context.Context, js natsgo.JetStreamContext, name, topic string) (*natsgo.RawStreamMsg, error) {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	last, err := js.GetLastMsg(name, topic, natsgo.Context(ctx))
	if errors.Is(err, natsgo.ErrMsgNotFound) {
		return &natsgo.RawStreamMsg{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("nats: last message of topic %q: %w", topic, err)
	}
	return last, nil
}

// whole returns an error if the limits of a stream may have deleted messages of a topic as new as the n messages read.
func whole(ctx context.Context, js natsgo.JetStreamContext, name, topic string, after time.Time, n int64) error {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	info, err := js.StreamInfo(name, natsgo.Context(ctx)) // messages may have been deleted meanwhile
	if err != nil {
		return fmt.Errorf("nats: stream of topic %q: %w", topic, err)
	}
	c, s := info.Config, info.State
	limit := ""
	switch {
	case c.Discard == natsgo.DiscardOld && (c.MaxMsgs > 0 || c.MaxBytes > 0) && s.Msgs > 0 && s.FirstSeq > 1 &&
		s.FirstTime.After(after):
		limit = fmt.Sprintf("max_msgs %d and max_bytes %d, and begins at %s, later", c.MaxMsgs, c.MaxBytes,
			s.FirstTime.UTC().Format(time.RFC3339))
	case c.MaxMsgsPerSubject > 0 && n >= c.MaxMsgsPerSubject && !c.DiscardNewPerSubject:
		limit = fmt.Sprintf("max_msgs_per_subject %d, and of topic %q nothing older", c.MaxMsgsPerSubject, topic)
	default:
		return nil
	}
	return fmt.Errorf("nats: stream %q has %s than %s: missing messages may have been deleted this way; compare "+
		"only later messages (Filter.After)",
		name, limit, after.UTC().Format(time.RFC3339))
}

// read reads up to the message that was the last one at the start, and returns the number of messages.
func (l *TopicReader) read(
	ctx context.Context, js natsgo.JetStreamContext, name, topic string, after time.Time, last uint64,
	fn func(natsgo.Header) error,
) (n int64, err error) {
	sub, err := js.SubscribeSync(topic,
		natsgo.HeadersOnly(), natsgo.OrderedConsumer(), natsgo.BindStream(name), natsgo.StartTime(after))
	if err != nil {
		return 0, fmt.Errorf("nats: read topic %q: %w", topic, err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	for {
		msg, err := next(ctx, sub)
		if err != nil {
			return n, fmt.Errorf("nats: read topic %q, whose last message has sequence %d: %w", topic, last, err)
		}
		n++
		meta, err := msg.Metadata()
		if err != nil {
			return n, fmt.Errorf("nats: read topic %q: %w", topic, err)
		}
		if err := fn(msg.Header); err != nil {
			return n, err
		}
		at := meta.Sequence.Stream
		if at < last && meta.NumPending == 0 {
			// A replica may lag behind its leader. The last message may have been deleted since.
			now, err := lastMessage(ctx, js, name, topic)
			if err != nil {
				return n, err
			}
			last = min(last, now.Sequence)
		}
		if at >= last {
			return n, nil
		}
	}
}

func next(ctx context.Context, sub *natsgo.Subscription) (*natsgo.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	return sub.NextMsgWithContext(ctx)
}

// uuidOf returns the UUID from its header or, if a marshaler does not set that, from our Nats-Msg-Id.
func uuidOf(h natsgo.Header) string {
	if uuid, err := url.QueryUnescape(h.Get(uuidHeader)); err == nil && uuid != "" {
		return uuid
	}
	if uuid := h.Get(wmnats.WatermillUUIDHdr); uuid != "" {
		return uuid
	}
	uuid, _, _ := strings.Cut(h.Get(natsgo.MsgIdHdr), " ")
	return uuid
}
