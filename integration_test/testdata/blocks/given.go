// Package blocks compiles the programs in the documents, each as the body of a function. These are the declarations
// that they assume.
package blocks

import (
	"context"
	"database/sql"
	"net/http"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"
	"gorm.io/gorm"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/fleet"
	ourforwarder "github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/observe"
	"github.com/millrace-go/watermill-outbox/queue"
)

var (
	ctx    context.Context
	err    error
	logger watermill.LoggerAdapter
	url    string
	uuid   string
	t      testing.TB
	region string
	js     jetstream.JetStream
	since  time.Time

	pool   *pgxpool.Pool
	sqlDB  *sql.DB
	tx     *sql.Tx
	gormDB *gorm.DB
	order  struct{ OrderID string }
	db     *outbox.DB
	events *outbox.Publisher
	fwd    *ourforwarder.Forwarder
	a      *admin.Admin
	cfg    ourforwarder.Config
	seen   observe.Observer

	router          *message.Router
	handler         *message.Handler
	stack           []message.HandlerMiddleware
	broker          message.Publisher
	pub             message.Publisher
	subscriber      message.Subscriber
	kafkaSubscriber message.Subscriber
	orders          message.Subscriber
	bus             *cqrs.EventBus
	marshaler       forwarder.Marshaler
	book            message.HandlerFunc
	brokers         []string
	keyOf           func(topic string, msg *message.Message) (string, error)

	orderID  string
	payload  []byte
	reminder *message.Message

	store                 *queue.Store
	remote                *queue.Store
	columns               func(msgs []*message.Message) (customers []string, amounts []int64, err error)
	tenants               *fleet.Fleet
	h                     map[string]queue.Handler
	takePayment, sendMail func(ctx context.Context, msg *queue.Message) error

	mux     *http.ServeMux
	server  outbox.Runner
	session func(r *http.Request) (user, error)

	clientOf     func(r *http.Request) (string, error)
	authenticate func(next http.Handler) http.Handler
	placeOrder   func(w http.ResponseWriter, r *http.Request) error
	verify       func(r *http.Request, body []byte) error
)

// Remind is an event.
type Remind struct{}

type user struct {
	Name                    string
	OnCall, MaySeeCustomers bool
}

func must[T any](v T, _ error) T { return v }
