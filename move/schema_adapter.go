package move

import (
	"cmp"
	stdsql "database/sql"
	"errors"
	"fmt"
	"sync"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	wforwarder "github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/envelope"
)

// SchemaAdapterConfig configures NewSchemaAdapter. The zero value is ready for use.
type SchemaAdapterConfig struct {
	// ForwarderTopic is the ForwarderTopic of Watermill's forwarder publisher, if you use one; default "forwarder_topic".
	// Messages published to this topic are unwrapped and stored under their own topics.
	ForwarderTopic string
	// Marshaler is the marshaler of the envelopes; default JSON.
	Marshaler wforwarder.Marshaler
}

type schemaAdapter struct {
	pub            *core.Publisher
	forwarderTopic string

	mu        sync.Mutex
	envelopes *envelope.Envelopes // guarded by mu
}

// NewSchemaAdapter lets a publisher of watermill-sql v3 write to the outbox as pub would, with its Key and limits. It
// uses the transaction of the watermill-sql publisher; PublisherConfig.WithoutTx and observers have no effect.
// InsertQuery returns outbox.ErrInvalidMessage for messages that cannot be stored. The constructor returns an error if
// pub is nil.
//
// The adapter is safe for concurrent use. It is for publishers only: a watermill-sql subscriber with it fails, because
// only forwarder.Forwarder and forwarder.Subscriber read the outbox.
//
// Forwarders find the messages at their next poll, or immediately after DB.Wake.
func NewSchemaAdapter(pub *outbox.Publisher, cfg SchemaAdapterConfig) (wsql.SchemaAdapter, error) {
	if pub == nil {
		return nil, errNoPublisher
	}
	envelopes, err := envelope.New(cfg.Marshaler)
	if err != nil {
		return nil, err
	}
	return &schemaAdapter{
		pub: (*core.Publisher)(pub), forwarderTopic: cmp.Or(cfg.ForwarderTopic, envelope.DefaultTopic), envelopes: envelopes,
	}, nil
}

// InsertQuery returns the statement that writes messages into the outbox. It returns outbox.ErrInvalidMessage for
// messages that cannot be stored.
func (s *schemaAdapter) InsertQuery(topic string, msgs message.Messages) (wsql.Query, error) {
	topics := make([]string, len(msgs))
	for i := range topics {
		topics[i] = topic
	}
	if topic == s.forwarderTopic {
		var err error
		if topics, msgs, err = s.open(msgs); err != nil {
			return wsql.Query{}, err
		}
	}
	stmt, err := s.pub.InsertStatement(topics, msgs)
	return wsql.Query{Query: stmt.SQL, Args: stmt.Args}, err
}

// open unwraps messages and returns them with their topics.
func (s *schemaAdapter) open(sealed message.Messages) (topics []string, msgs message.Messages, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, outer := range sealed {
		if outer == nil {
			return nil, nil, fmt.Errorf("%w: message %d of the call is nil", outbox.ErrInvalidMessage, i)
		}
		topic, msg, err := s.envelopes.Open(outer)
		if err != nil {
			return nil, nil, fmt.Errorf("%w %q: topic %s is for envelopes of Watermill's forwarder, and this is not one: "+
				"publish it to another topic, or set SchemaAdapterConfig.ForwarderTopic: %w", outbox.ErrInvalidMessage,
				outer.UUID, s.forwarderTopic, err)
		}
		envelope.KeepDelay(msg, outer.Metadata)
		msg.SetContext(outer.Context()) // for PublisherConfig.Key
		topics, msgs = append(topics, topic), append(msgs, msg)
	}
	return topics, msgs, nil
}

// SchemaInitializingQueries returns no queries: schema.Migrate makes the tables.
func (s *schemaAdapter) SchemaInitializingQueries(string) []wsql.Query { return nil }

// SelectQuery returns a query that fails and names forwarder.Subscriber.
func (s *schemaAdapter) SelectQuery(string, string, wsql.OffsetsAdapter) wsql.Query {
	return wsql.Query{Query: `SELECT '` + errWriteOnly.Error() + `'::bigint`}
}

// UnmarshalMessage returns an error that names forwarder.Subscriber.
func (s *schemaAdapter) UnmarshalMessage(wsql.Scanner) (wsql.Row, error) {
	return wsql.Row{}, errWriteOnly
}

// SubscribeIsolationLevel returns the default level.
func (s *schemaAdapter) SubscribeIsolationLevel() stdsql.IsolationLevel { return stdsql.LevelDefault }

// Cause: a SchemaAdapter was passed to it.
// Cure: read the outbox with forwarder.Subscriber.
var errWriteOnly = errors.New("a watermill-sql subscriber cannot read the outbox: use forwarder.Subscriber")

// errNoPublisher is the error for a nil publisher.
// Cause: the publisher that was passed is nil.
var errNoPublisher = errors.New("move: the publisher is nil: make one with outbox.NewPublisher, whose " +
	"PublisherConfig.Key decides which messages keep their order")
