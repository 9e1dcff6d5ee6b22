package integration_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/queue"
)

// webhookOn stores posts whose signature is "good", under the ID in their header.
func webhookOn(t testing.TB, s *queue.Store, configure func(*queue.WebhookConfig)) http.Handler {
	t.Helper()
	return webhookLogging(t, s, newLogCapture(t), configure)
}

func webhookLogging(
	t testing.TB, s *queue.Store, log watermill.LoggerAdapter, configure func(*queue.WebhookConfig),
) http.Handler {
	t.Helper()
	cfg := queue.WebhookConfig{
		MaxBytes: 1000,
		Verify: func(r *http.Request, body []byte) error {
			if r.Header.Get("Signature") != "good" || !bytes.HasPrefix(body, []byte("payload")) {
				return errors.New("wrong signature")
			}
			return nil
		},
		Item: func(r *http.Request, body []byte) (queue.Item, error) {
			switch r.Header.Get("Id") {
			case "none":
				return queue.Item{}, errors.New("no ID in it")
			case "unwanted":
				return queue.Item{}, fmt.Errorf("of a type without a handler: %w", queue.ErrIgnore)
			}
			return queue.Item{ID: queue.ID{Source: "shop", MessageID: r.Header.Get("Id")}, Topic: "orders", Payload: body}, nil
		},
	}
	if configure != nil {
		configure(&cfg)
	}
	w, err := queue.NewWebhook(s, cfg, log)
	require.NoError(t, err)
	return w
}

func post(id, body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/hooks", strings.NewReader(body))
	r.Header.Set("Signature", "good")
	r.Header.Set("Id", id)
	return r
}

func answer(w http.Handler, r *http.Request) *http.Response {
	recorder := httptest.NewRecorder()
	w.ServeHTTP(recorder, r)
	return recorder.Result()
}

// TestWebhookAnswers 200 once the message is committed, also if it was known, and otherwise the reason.
func TestWebhookAnswers(t *testing.T) {
	h := onPgx(t)
	cfg := quickStore()
	cfg.MaxPayloadBytes = 100
	s := storeOn(t, h, cfg)
	w := webhookOn(t, s, nil)
	check := func(r *http.Request, status int, result string) {
		t.Helper()
		a := answer(w, r)
		assert.Equal(t, status, a.StatusCode)
		assert.Equal(t, result, a.Header.Get("Queue-Result"))
		body, err := io.ReadAll(a.Body)
		require.NoError(t, err)
		assert.NotContains(t, string(body), "signature", "responses do not help to guess")
	}
	check(post("one", "payload"), 200, "new")
	check(post("one", "payload"), 200, "updated")
	msgs := claimed(t, s, queue.NewOwner(), 1)
	require.Len(t, msgs, 1)
	check(post("one", "payload"), 200, "busy")
	owner := queue.NewOwner()
	check(post("two", "payload"), 200, "new")
	require.Len(t, claimed(t, s, owner, 1), 1)
	n, err := s.Ack(t.Context(), owner, queue.ID{Source: "shop", MessageID: "two"})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	check(post("two", "payload"), 200, "already done")

	get := post("one", "payload")
	get.Method = http.MethodGet
	check(get, 405, "")
	assert.Equal(t, "POST", answer(w, get).Header.Get("Allow"))
	forged := post("forged", "payload")
	forged.Header.Set("Signature", "bad")
	check(forged, 401, "")
	check(post("forged", "another body"), 401, "")
	check(post("none", "payload"), 400, "")
	check(post("unwanted", "payload"), 200, "ignored")
	check(post("", "payload"), 400, "")
	check(post(strings.Repeat("x", 256), "payload"), 400, "")
	check(post("long", "payload"+strings.Repeat("x", 994)), 413, "")
	check(post("long", "payload"+strings.Repeat("x", 94)), 413, "")
	assert.Equal(t, 2, h.count(t, "select count(*) from inbox_queue"), "refused messages are not stored")

	h.exec(t, "alter table inbox_queue rename to gone")
	check(post("later", "payload"), 503, "")
	assert.NotEmpty(t, answer(w, post("later", "payload")).Header.Get("Retry-After"))
	h.exec(t, "alter table gone rename to inbox_queue")

	w = webhookOn(t, s, func(cfg *queue.WebhookConfig) {
		cfg.Verify = func(*http.Request, []byte) error { panic("canary") }
	})
	check(post("one", "payload"), 500, "")

	for wait, want := range map[time.Duration]string{0: "5", 1500 * time.Millisecond: "2", time.Hour: "3600"} {
		later := outbox.RetryAfter(errors.New("the keys of signatures cannot be fetched"), wait)
		for name, configure := range map[string]func(*queue.WebhookConfig){
			"Verify": func(cfg *queue.WebhookConfig) { cfg.Verify = func(*http.Request, []byte) error { return later } },
			"Item": func(cfg *queue.WebhookConfig) {
				cfg.Item = func(*http.Request, []byte) (queue.Item, error) { return queue.Item{}, later }
			},
			"Store": func(cfg *queue.WebhookConfig) {
				cfg.Store = func(*http.Request) (*queue.Store, error) { return nil, later }
			},
		} {
			a := answer(webhookOn(t, s, configure), post("one", "payload"))
			assert.Equal(t, 503, a.StatusCode, name)
			assert.Equal(t, want, a.Header.Get("Retry-After"), name)
		}
	}
}

// TestWebhookWaitsForNoSlowBody: senders that trickle their bodies occupy a connection, and delay Shutdown, for at most
// ReadTimeout.
func TestWebhookWaitsForNoSlowBody(t *testing.T) {
	s := storeOn(t, onPgx(t), quickStore())
	const patient = 200 * time.Millisecond
	server := httptest.NewServer(webhookOn(t, s, func(cfg *queue.WebhookConfig) { cfg.ReadTimeout = patient }))
	t.Cleanup(server.Close)
	dial := func(head string) (net.Conn, *bufio.Reader) {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
		_, err = io.WriteString(conn, head)
		require.NoError(t, err)
		return conn, bufio.NewReader(conn)
	}
	read := func(from *bufio.Reader) int {
		t.Helper()
		a, err := http.ReadResponse(from, nil)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, a.Body)
		require.NoError(t, err)
		return a.StatusCode
	}
	const head = " /hooks HTTP/1.1\r\nHost: shop\r\nSignature: good\r\nId: one\r\nContent-Length: "
	good, answers := dial("POST" + head + "7\r\n\r\npayload")
	require.Equal(t, 200, read(answers))
	for method, status := range map[string]int{"POST": 408, "PUT": 405} {
		conn, answers := dial(method + head + "900\r\n\r\n")
		trickled := make(chan struct{})
		go func() {
			defer close(trickled)
			for range 900 {
				if _, err := conn.Write([]byte("x")); err != nil {
					return
				}
				time.Sleep(patient / 10)
			}
			t.Errorf("%s: the webhook waited for the whole body", method)
		}()
		assert.Equal(t, status, read(answers))
		_, err := answers.ReadByte()
		require.Error(t, err, "the connection is closed")
		<-trickled
	}
	_, err := io.WriteString(good, "POST"+head+"7\r\n\r\npayload")
	require.NoError(t, err)
	require.Equal(t, 200, read(answers), "time passes between two requests")

	server = httptest.NewUnstartedServer(server.Config.Handler)
	server.Config.ReadTimeout = patient / 2 // a shorter timeout of the server stays in effect
	server.Start()
	t.Cleanup(server.Close)
	dial("POST" + head + "900\r\n\r\n")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, server.Config.Shutdown(ctx))
}

// TestWebhookLogsNoBody, not even within the text of an error: errors of decoders quote their input.
func TestWebhookLogsNoBody(t *testing.T) {
	s := storeOn(t, onPgx(t), quickStore())
	log := &lineLogger{}
	decode := func(body []byte) error {
		var to struct{ Amount int8 }
		err := json.Unmarshal(body, &to)
		if err == nil {
			_, err = time.Parse(time.RFC3339, string(body))
		}
		return err
	}
	for _, body := range []string{`{"amount": 4111111111111111}`, `{"amount": 7}`, `\x07`} {
		for _, cfg := range []queue.WebhookConfig{
			{Verify: func(_ *http.Request, body []byte) error { return decode(body) }},
			{Item: func(_ *http.Request, body []byte) (queue.Item, error) { return queue.Item{}, decode(body) }},
			{Item: func(_ *http.Request, body []byte) (queue.Item, error) { panic(decode(body)) }},
		} {
			if cfg.Verify == nil {
				cfg.Verify = func(*http.Request, []byte) error { return nil }
			}
			if cfg.Item == nil {
				cfg.Item = func(*http.Request, []byte) (queue.Item, error) { return queue.Item{}, nil }
			}
			w, err := queue.NewWebhook(s, cfg, log)
			require.NoError(t, err)
			assert.NotEqual(t, 200, answer(w, post("one", body)).StatusCode)
		}
	}
	assert.True(t, log.has("INFO", "cannot unmarshal number", "struct field .Amount of type int8"),
		"the useful part is there: %s", log.lines)
	assert.True(t, log.has("INFO", "parsing time"), log.lines)
	for _, part := range []string{"4111111111111111", `7`, `\x07`} {
		for _, line := range log.lines {
			line, _, _ = strings.Cut(line, "stack:")
			assert.NotContains(t, line, part)
		}
	}
}

// TestWebhookConflictChangesNothing: different content under a known ID is refused if so configured.
func TestWebhookConflictChangesNothing(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	w := webhookOn(t, s, func(cfg *queue.WebhookConfig) { cfg.ConflictOnChange = true })
	assert.Equal(t, 200, answer(w, post("one", "payload")).StatusCode)
	assert.Equal(t, 409, answer(w, post("one", "payload, another")).StatusCode)
	assert.Equal(t, "payload", string(got(t, s, queue.ID{Source: "shop", MessageID: "one"}).Payload))
	assert.Equal(t, 200, answer(w, post("one", "payload")).StatusCode)
}

// TestWebhookOfTenants picks the store of each request after its signature is verified.
func TestWebhookOfTenants(t *testing.T) {
	parallel(t)
	a, b := newPgxHandle(t, newMigratedDatabase(t)), newPgxHandle(t, newMigratedDatabase(t))
	stores := map[string]*queue.Store{"a": storeOn(t, a, quickStore()), "b": storeOn(t, b, quickStore())}
	log := &lineLogger{}
	w := webhookLogging(t, nil, log, func(cfg *queue.WebhookConfig) {
		cfg.Store = func(r *http.Request) (*queue.Store, error) {
			assert.Equal(t, "good", r.Header.Get("Signature"))
			if s := stores[r.URL.Query().Get("tenant")]; s != nil {
				return s, nil
			}
			return nil, errors.New("no such tenant")
		}
	})
	for tenant, status := range map[string]int{"a": 200, "b": 200, "c": 404} {
		r := post("one", "payload")
		r.URL.RawQuery = "tenant=" + tenant
		assert.Equal(t, status, answer(w, r).StatusCode, tenant)
	}
	broken := post("one", "payload")
	broken.URL.RawQuery, broken.Header["Id"] = "tenant=b", []string{"none"}
	assert.Equal(t, 400, answer(w, broken).StatusCode)
	assert.True(t, log.has("INFO", "refused", "status:400", "db:"+b.db.Name()), "a line names the database: %s", log.lines)
	for _, h := range []handle{a, b} {
		assert.Equal(t, 1, h.count(t, "select count(*) from inbox_queue"))
	}
}

// waitForQueue counts the statements that wait for the table of the queue. Copies of the template database have the
// same oids for their tables.
const waitForQueue = `select count(*) from pg_locks where relation = 'inbox_queue'::regclass and not granted
	and database = (select oid from pg_database where datname = current_database())`

// TestWebhookOutlivesItsClient: a client that disconnects leaves nothing half done.
func TestWebhookOutlivesItsClient(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	w := webhookOn(t, s, nil)
	lock, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	defer lock.Rollback(context.Background()) // no effect unless the test failed
	_, err = lock.Exec(t.Context(), "lock table inbox_queue in exclusive mode")
	require.NoError(t, err)
	ctx, leave := context.WithCancel(t.Context())
	served := make(chan struct{})
	go func() {
		defer close(served)
		answer(w, post("one", "payload").WithContext(ctx))
	}()
	waiting := func(n int) {
		eventually(t, func() bool {
			return h.count(t, waitForQueue) == n
		}, "%d statements wait", n)
	}
	waiting(1)
	leave()
	later := make(chan int, 1)
	go func() { later <- answer(w, post("later", "payload")).StatusCode }()
	waiting(2) // the first one is not interrupted
	require.NoError(t, lock.Rollback(t.Context()))
	<-served
	assert.Equal(t, 200, <-later)
	assert.Equal(t, 2, h.count(t, "select count(*) from inbox_queue"))

	// A transaction that the server's own middleware put into the context must not be the one committed.
	err = outbox.InTx(t.Context(), h.db, func(ctx context.Context) error {
		assert.Equal(t, 200, answer(w, post("two", "payload").WithContext(ctx)).StatusCode)
		return outbox.SetRollbackOnly(ctx)
	})
	require.ErrorIs(t, err, outbox.ErrRolledBack)
	assert.Equal(t, 3, h.count(t, "select count(*) from inbox_queue"))
}

// TestIngestSplitsABatchThatTheDatabaseRefuses: of the messages stored in one statement, only those that a constraint
// or a trigger refuses fail. A constraint violation is poison; an error of a trigger may be temporary.
func TestIngestSplitsABatchThatTheDatabaseRefuses(t *testing.T) {
	parallel(t)
	raise := func(how string) string {
		return `create function refuse() returns trigger language plpgsql as $$ begin
			if new.message_id like '%bad%' then raise ` + how + `; end if; return new; end $$;
			create trigger refuse before insert on inbox_queue for each row execute function refuse()`
	}
	for name, refusal := range map[string]struct {
		sql    string
		poison bool
	}{
		"constraint":        {"alter table inbox_queue add check (message_id not like '%bad%')", true},
		"trigger":           {raise("exception 'no'"), false},
		"code of its own":   {raise("exception 'no' using errcode = 'MY001'"), false},
		"a data error's":    {raise("data_exception"), true},
		"policy of a table": {raise("with_check_option_violation"), false},
		"swallowed": {`create function refuse() returns trigger language plpgsql as $$ begin
			return case when new.message_id like '%bad%' then null else new end; end $$;
			create trigger refuse before insert on inbox_queue for each row execute function refuse()`, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newPgxHandle(t, newMigratedDatabase(t))
			h.exec(t, refusal.sql)
			var came atomic.Int64
			ingest, err := queue.Ingest(storeOn(t, h, quickStore()), queue.IngestConfig{
				Item: func(msg *message.Message) (queue.Item, error) {
					came.Add(1)
					return queue.Item{ID: queue.ID{Source: "kafka", MessageID: msg.UUID}, Topic: "orders"}, nil
				},
			})
			require.NoError(t, err)
			lock, err := h.pool.Begin(t.Context())
			require.NoError(t, err)
			defer lock.Rollback(context.Background()) // no effect unless the test failed
			_, err = lock.Exec(t.Context(), "lock table inbox_queue in exclusive mode")
			require.NoError(t, err)
			type result struct {
				id  string
				err error
			}
			const gathered = 16
			results := make(chan result, gathered+1)
			put := func(id string) { go func() { results <- result{id, ingest(message.NewMessage(id, nil))} }() }
			put("first")
			h.reaches(t, 1, "the first waits", waitForQueue)
			for i := range gathered {
				put(map[bool]string{true: "bad-", false: "good-"}[i%5 == 2] + itoa(i))
			}
			eventually(t, func() bool { return came.Load() == gathered+1 }, "the others gather behind it")
			require.NoError(t, lock.Rollback(t.Context()))
			for range gathered + 1 {
				switch r := within(t, "an answer", results); {
				case r.id[0] != 'b':
					assert.NoError(t, r.err, r.id)
				case refusal.poison:
					assert.ErrorIs(t, r.err, outbox.ErrPoison, r.id)
				default:
					assert.Error(t, r.err, r.id)
					assert.NotErrorIs(t, r.err, outbox.ErrPoison, r.id)
				}
			}
			assert.Equal(t, 14, h.count(t, "select count(*) from inbox_queue"))
		})
	}
}
