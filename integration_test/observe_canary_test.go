package integration_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/admin/ui"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/idempotency"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe"
	"github.com/millrace-go/watermill-outbox/observe/otel"
	"github.com/millrace-go/watermill-outbox/observe/prom"
	"github.com/millrace-go/watermill-outbox/queue"
)

// canary is the prefix of every secret: payloads, values of metadata, passwords and tokens.
const canary = "cnry"

// sings returns where a text contains a canary, as text or as printed bytes.
func sings(text string) (where []string) {
	numbers := strings.Trim(fmt.Sprint([]byte(canary)), "[]")
	for _, form := range []string{
		canary, hex.EncodeToString([]byte(canary)), base64.StdEncoding.EncodeToString([]byte(canary[:3])), numbers,
		strings.ReplaceAll(numbers, " ", ","),
	} {
		for line := range strings.Lines(text) {
			if strings.Contains(line, form) {
				where = append(where, line)
			}
		}
	}
	return where
}

// aviary is a service with all components, whose complete log is one text.
type aviary struct {
	t      *testing.T
	h      handle
	log    *watched
	logger watermill.LoggerAdapter
	tel    telemetry
	prom   *prometheus.Registry
}

func newAviary(t *testing.T) *aviary {
	t.Helper()
	at, err := url.Parse(newMigratedDatabase(t))
	require.NoError(t, err)
	at.User = url.UserPassword(at.User.Username(), canary+"p@ss:w/rd")
	a := &aviary{t: t, log: &watched{}, tel: newTelemetry(t, otel.ObserverConfig{}), prom: prometheus.NewRegistry()}
	handler := slog.NewJSONHandler(a.log, &slog.HandlerOptions{Level: watermill.LevelTrace})
	a.logger = watermill.NewSlogLogger(slog.New(handler))
	observer, err := prom.NewObserver(prom.ObserverConfig{})
	require.NoError(t, err)
	a.prom.MustRegister(observer)
	watching := outbox.DBConfig{Observers: []observe.Observer{a.tel.Observer, observer}}
	a.h = newPgxHandle(t, at.String()).logging(t, watching, a.logger)
	collector, err := prom.NewCollector(a.h.db, prom.CollectorConfig{QueryTimeout: patience}, a.logger)
	require.NoError(t, err)
	a.prom.MustRegister(collector)
	return a
}

// errSecret quotes an address, as errors of drivers do.
var errSecret = errors.New("dial postgres://ann:" + canary + "@pass@db:5432/x: refused; password=" + canary +
	`; {"token": "` + canary + `"}; Bearer ` + canary + "7")

func (a *aviary) message(uuid string) *message.Message {
	msg := message.NewMessage(uuid, []byte(canary+" payload"))
	msg.Metadata.Set("customer", canary+" value")
	return msg
}

// TestNoCanarySings puts payloads, metadata, passwords and tokens everywhere they can occur, makes everything fail, and
// checks logs, stored errors, metrics, traces and operators' screens.
func TestNoCanarySings(t *testing.T) {
	parallel(t)
	a := newAviary(t)
	a.publishes()
	a.forwards()
	a.handles()
	a.reads()
	a.queues()
	a.answers()
	a.losesTheDatabase()

	logged := strings.SplitAfter(a.log.String(), "\n")
	logged = slices.DeleteFunc(logged, func(line string) bool {
		return strings.Contains(line, `"msg":"Handler returned error"`) // written by Watermill's Router
	})
	assert.Empty(t, sings(strings.Join(logged, "")), "in the log")
	for _, text := range []string{"refused", "panicked", "127.0.0.1:1"} {
		assert.Contains(t, a.log.String(), text, "this text never occurred")
	}
	metrics, err := a.prom.Gather()
	require.NoError(t, err)
	assert.NotEmpty(t, metrics)
	assert.Empty(t, sings(fmt.Sprint(metrics)), "in the metrics")
	spans := a.tel.spans.Ended()
	assert.NotEmpty(t, spans)
	for _, span := range spans {
		said := fmt.Sprint(span.Name(), span.Attributes(), span.Events(), span.Status(), span.Links())
		assert.Empty(t, sings(said), "in a span")
	}
}

// publishes publishes messages that the outbox refuses to store.
func (a *aviary) publishes() {
	pub, err := outbox.NewPublisher(a.h.db, outbox.PublisherConfig{MaxPayloadBytes: 100}, a.logger)
	require.NoError(a.t, err)
	for name, spoil := range map[string]func(*message.Message){
		"payload":  func(m *message.Message) { m.Payload = bytes.Repeat(m.Payload, 100) },
		"metadata": func(m *message.Message) { m.Metadata.Set("a", canary+"\x00") },
		"delay":    func(m *message.Message) { m.Metadata.Set(delay.DelayedUntilKey, canary) },
		"duration": func(m *message.Message) { m.Metadata.Set(delay.DelayedForKey, canary) },
	} {
		msg := a.message("bad")
		spoil(msg)
		err := outbox.InTx(a.t.Context(), a.h.db, func(ctx context.Context) error {
			return pub.PublishContext(ctx, "orders", msg)
		})
		require.Error(a.t, err)
		assert.Empty(a.t, sings(err.Error()), name)
	}
}

// forwards publishes messages that are refused in every way, and rows inserted by SQL.
func (a *aviary) forwards() {
	pub := newOutboxPublisher(a.t, a.h)
	b := newFakeBroker()
	b.answers(func(topic string, msg *message.Message) error {
		switch topic {
		case "refused":
			return &forwarder.PublishError{Verdict: forwarder.Retry, Err: errSecret}
		case "permanent":
			return &forwarder.PublishError{Verdict: forwarder.Permanent, Err: errSecret}
		case "away":
			return &forwarder.PublishError{Verdict: forwarder.Unavailable, Err: errSecret}
		case "panics":
			panic(errSecret)
		case "hangs":
			<-msg.Context().Done()
			return errors.Join(msg.Context().Err(), errSecret)
		}
		return nil
	})
	for _, topic := range []string{"fine", "refused", "permanent", "away", "panics", "hangs"} {
		require.NoError(a.t, outbox.InTx(a.t.Context(), a.h.db, func(ctx context.Context) error {
			return pub.PublishContext(ctx, topic, a.message(topic))
		}))
	}
	for i, metadata := range []string{
		`["cnry value"]`, `"cnry value"`, `{"a": {"b": "cnry value"}}`, `{"a": 1, "cnry value": null}`,
	} {
		a.h.exec(a.t, `insert into outbox (uuid, topic, payload, metadata) values ('odd' || $1::int, 'odd', 'cnry', $2)`, i,
			metadata)
	}
	cfg := quickConfig()
	cfg.MaxAttempts, cfg.MinDeadAge, cfg.PublishTimeout = 2, -1, 200*time.Millisecond
	f, err := forwarder.New(a.h.db, b, cfg, a.logger)
	require.NoError(a.t, err)
	end := a.run(f)
	pending := func() []string {
		return column[string](a.t, a.h, `select uuid || coalesce(': ' || last_error, '') from outbox
			where topic not in ('away', 'hangs', 'panics') and dead_at is null and published_at is null`)
	}
	if !eventuallyTrue(func() bool {
		return len(pending()) == 0 && a.h.count(a.t, `select count(*) from outbox_topics where reason <> ''`) > 0
	}) {
		a.t.Fatalf("not all are dead or published, or no topic is paused: %v", pending())
	}
	a.shown()
	a.stored()
	require.NoError(a.t, end())
}

// run runs a part until the test ends, or until the returned function is called, which returns its error.
func (a *aviary) run(r interface {
	outbox.Runner
	Close() error
}) (end func() error) {
	ended := make(chan error, 1)
	go func() { ended <- r.Run(context.Background()) }()
	end = sync.OnceValue(func() error { return errors.Join(r.Close(), <-ended) })
	a.t.Cleanup(func() { _ = end() })
	return end
}

// handles makes handlers of a Router fail.
func (a *aviary) handles() {
	pub := newOutboxPublisher(a.t, a.h)
	in := newFeed()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, nil)
	require.NoError(a.t, err)
	router.AddMiddleware(stackFor(a.t, pub, middleware.StackConfig{
		ErrorHandler: middleware.ErrorHandlerConfig{MaxAttempts: 2},
	}, a.logger)...)
	a.h.exec(a.t, `create table cages (bird text primary key)`)
	router.AddHandler("keep", "birds", in, "kept", pub, func(msg *message.Message) ([]*message.Message, error) {
		switch msg.UUID {
		case "fails":
			return nil, errSecret
		case "poison":
			return nil, outbox.Poison(errSecret)
		case "panics":
			panic(errSecret)
		case "twice":
			for range 2 {
				if err := a.h.execTx(msg.Context(), `insert into cages values ($1)`, string(msg.Payload)); err != nil {
					return nil, err
				}
			}
		}
		return message.Messages{a.message("kept")}, nil
	})
	end := a.run(router)
	<-router.Running()
	for _, uuid := range []string{"fine", "fails", "poison", "panics", "twice"} {
		for range 20 {
			if in.deliver(a.t, a.message(uuid)) {
				break
			}
		}
	}
	require.NoError(a.t, end())
}

// reads delivers messages from Kafka and NATS to failing handlers.
func (a *aviary) reads() {
	nats := newJetStreamWorld(a.t, natsServer(a.t).URL())
	configs := []inboundConfig{nats.config()}
	_, err := nats.js.PublishMsg(&natsgo.Msg{Subject: nats.topic, Data: []byte(canary + " 1"), Header: natsgo.Header{
		wmnats.WatermillUUIDHdr: {"n1"}, "customer": {canary + " value"}, outbox.MetadataKey: {"k"},
	}})
	require.NoError(a.t, err)
	if server, err := startKafka(); !errors.Is(err, services.ErrNotInstalled) || services.InCI() {
		require.NoError(a.t, err)
		w := newInboundWorldIn(a.t, a.h, server, 1)
		c := w.config()
		configs = append(configs, c)
		settings := sarama.NewConfig()
		settings.Producer.Return.Successes = true
		producer, err := sarama.NewSyncProducer(server.Brokers(), settings)
		require.NoError(a.t, err)
		_, _, err = producer.SendMessage(&sarama.ProducerMessage{
			Topic: w.topic, Key: sarama.StringEncoder("k"), Value: sarama.StringEncoder(canary + " 1"),
			Headers: []sarama.RecordHeader{
				{Key: []byte(wmkafka.UUIDHeaderKey), Value: []byte("k1")},
				{Key: []byte("customer"), Value: []byte(canary + " value")},
			},
		})
		require.NoError(a.t, err)
		require.NoError(a.t, producer.Close())
	}
	for _, c := range configs {
		calls := make(chan struct{}, 1000)
		s, err := startInbound(a.h, c, func(*message.Message, string) error {
			calls <- struct{}{}
			return errSecret
		}, a.logger)
		require.NoError(a.t, err)
		a.t.Cleanup(s.close)
		for range 3 {
			within(a.t, "the handler fails", calls)
		}
		s.close()
	}
}

// queues makes the queue and its webhooks refuse messages, fail, and mark messages dead.
func (a *aviary) queues() {
	cfg := quickStore()
	cfg.MaxAttempts = 2
	s, err := queue.NewStore(a.h.db, cfg, a.logger)
	require.NoError(a.t, err)
	hook, err := queue.NewWebhook(s, queue.WebhookConfig{
		MaxBytes: 1000,
		Verify: func(r *http.Request, body []byte) error {
			if bytes.HasPrefix(body, []byte("{")) {
				return json.Unmarshal(body, new(struct{ A int }))
			}
			return nil
		},
		Item: func(r *http.Request, body []byte) (queue.Item, error) {
			if bytes.HasPrefix(body, []byte("[")) {
				return queue.Item{}, json.Unmarshal(body, new(struct{ A int }))
			}
			return queue.Item{
				ID: queue.ID{Source: "birds", MessageID: r.Header.Get("Id")}, Topic: r.Header.Get("Id"), Payload: body,
				Metadata: map[string]string{"customer": r.Header.Get("Customer")},
			}, nil
		},
	}, a.logger)
	require.NoError(a.t, err)
	post := func(id, body, customer string) int {
		r := httptest.NewRequest(http.MethodPost, "/hook?token="+canary, strings.NewReader(body))
		r.Header.Set("Id", id)
		r.Header.Set("Customer", customer)
		r.Header.Set("Authorization", "Bearer "+canary+"1")
		recorder := httptest.NewRecorder()
		hook.ServeHTTP(recorder, r)
		assert.Empty(a.t, sings(recorder.Body.String()), "in an answer")
		return recorder.Code
	}
	assert.Equal(a.t, 401, post("a", `{"A": "`+canary+`"}`, ""))
	assert.Equal(a.t, 400, post("a", `["`+canary+`"]`, ""))
	assert.Equal(a.t, 400, post("a", canary, canary+"\x00"))
	assert.Equal(a.t, 400, post("", canary, canary))
	assert.Equal(a.t, 413, post("a", strings.Repeat(canary, 1000), canary))
	topics := []string{"fine", "fails", "poison", "panics", "nobodys"}
	for _, topic := range topics {
		assert.Equal(a.t, 200, post(topic, canary, canary+" value"))
		assert.Equal(a.t, 200, post(topic, canary+" other", canary+" value"))
	}
	handle := func(_ context.Context, msg *queue.Message) error {
		switch msg.Topic {
		case "fails":
			return errSecret
		case "poison":
			return outbox.Poison(errSecret)
		case "panics":
			panic(errSecret)
		}
		return nil
	}
	handlers := map[string]queue.Handler{}
	for _, topic := range topics[:4] {
		handlers[topic] = queue.Handler{Handle: handle}
	}
	d, err := queue.NewDispatcher(s, quickDispatcher(handlers), a.logger)
	require.NoError(a.t, err)
	end := a.run(d)
	eventually(a.t, func() bool {
		return a.h.count(a.t, `select count(*) from inbox_queue where state in ('dead', 'done')`) == 4
	}, "one is done and three are dead")
	assert.Equal(a.t, 200, post("fine", canary+" changed", canary+" value"), "and known with different content")
	require.NoError(a.t, end())
}

// answers makes requests with an Idempotency-Key fail.
func (a *aviary) answers() {
	once, err := idempotency.New(a.h.db, idempotency.Config{
		Tenant: func(r *http.Request) (string, error) {
			if r.URL.Path == "/stranger" {
				return "", errSecret
			}
			return "ann", nil
		},
		MaxResponse: 100,
	}, a.logger)
	require.NoError(a.t, err)
	server := once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/fails":
			w.WriteHeader(http.StatusInternalServerError)
		case "/large":
			_, _ = w.Write(bytes.Repeat([]byte(canary), 100))
		}
		_, _ = w.Write([]byte(canary))
	}))
	for _, path := range []string{"/fine", "/fine", "/fails", "/large", "/stranger"} {
		r := httptest.NewRequest(http.MethodPost, path+"?token="+canary, strings.NewReader(canary))
		r.Header.Set(idempotency.HeaderKey, "k"+path)
		r.Header.Set("Authorization", "Bearer "+canary+"1")
		server.ServeHTTP(httptest.NewRecorder(), r)
	}
}

// shown reads the screens of operators who may not see payloads, and the other columns of the tables.
func (a *aviary) shown() {
	sings := func(shown string) []string { return sings(strings.ReplaceAll(shown, canary+" value", "")) }
	c := ctl{t: a.t, url: a.h.url}
	commands := []string{
		"outbox list", "outbox list --state dead", "outbox show 1", "errors", "inbox list", "queue list", "keys blocked",
		"topics list", "stats", "doctor", "check", "outbox retry-now --all --yes", "audit list",
	}
	pages := []string{
		"", "errors", "errors?in=inbox", "errors?in=queue", "messages?state=dead", "messages?in=inbox&state=dead",
		"messages?in=queue&state=dead", "message?in=outbox&id=1", "topics", "audit",
	}
	for noun, ids := range map[string]string{
		"inbox": `select consumer || ':' || message_id from inbox where last_error <> '' limit 1`,
		"queue": `select source || ':' || message_id from inbox_queue where last_error <> '' limit 1`,
	} {
		for _, id := range column[string](a.t, a.h, ids) {
			commands = append(commands, noun+" show "+id)
			pages = append(pages, "message?in="+noun+"&id="+url.QueryEscape(id))
		}
	}
	for _, command := range commands {
		for _, form := range []string{"", " -o json"} {
			r := c.run(words(command + form)...)
			assert.Empty(a.t, sings(r.out+r.err), command+form)
		}
	}
	s := newSite(a.t, a.h, ui.Access{})
	for _, page := range pages {
		assert.Empty(a.t, sings(s.get(page).body), page)
	}
}

// stored checks the errors in the tables.
func (a *aviary) stored() {
	for _, errs := range []string{
		`select last_error from outbox where last_error <> ''`, `select reason from outbox_topics where reason <> ''`,
		`select last_error from inbox where last_error <> ''`, `select last_error from inbox_queue where last_error <> ''`,
	} {
		assert.Empty(a.t, sings(strings.Join(column[string](a.t, a.h, errs), "\n")), errs)
	}
}

// quotes stores errors that quote secrets, as SQL may.
func (a *aviary) quotes() {
	a.stored()
	for _, table := range []string{"outbox", "inbox", "inbox_queue"} {
		a.h.exec(a.t, "update "+table+" set last_error = $1 where last_error <> ''", errSecret.Error())
	}
	a.h.exec(a.t, "update outbox_topics set reason = $1", errSecret.Error())
	a.shown()
	dead := admin.Filter{States: []admin.State{admin.Dead}}
	groups, err := newAdmin(a.t, a.h).ErrorGroups(a.t.Context(), dead)
	require.NoError(a.t, err)
	require.NotEmpty(a.t, groups)
	dead.ErrorGroup = groups[0].ID
	found, err := newAdmin(a.t, a.h).List(a.t.Context(), dead, admin.Page{})
	require.NoError(a.t, err)
	assert.NotEmpty(a.t, found.Messages, "a group of such an error has its messages")
}

// losesTheDatabase runs everything while the server is unreachable.
func (a *aviary) losesTheDatabase() {
	a.shown()
	a.quotes()
	at, err := url.Parse(a.h.url)
	require.NoError(a.t, err)
	at.Host = "127.0.0.1:1"
	gone := newPgxHandle(a.t, at.String()).logging(a.t, outbox.DBConfig{}, a.logger)
	f, err := forwarder.New(gone.db, newFakeBroker(), quickConfig(), a.logger)
	require.NoError(a.t, err)
	end := a.run(f)
	eventually(a.t, func() bool { return strings.Contains(a.log.String(), at.Host) }, "the forwarder logs that")
	if err := end(); err != nil {
		assert.Empty(a.t, sings(err.Error()))
	}
	err = outbox.InTx(a.t.Context(), gone.db, func(context.Context) error { return nil })
	require.Error(a.t, err)
	assert.Empty(a.t, sings(err.Error()))
}
