//go:build unix

package integration_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/idempotency"
)

// serveOrders serves on a free port and prints its address as a line.
func serveOrders(settings []byte) error {
	var url string
	if err := json.Unmarshal(settings, &url); err != nil {
		return err
	}
	pool, err := pgxpool.New(context.Background(), url+"&pool_max_conns=24")
	if err != nil {
		return err
	}
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
	if err != nil {
		return err
	}
	pub, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, nil)
	if err != nil {
		return err
	}
	once, err := idempotency.New(db, idempotency.Config{
		Tenant: func(*http.Request) (string, error) { return "", nil },
		Wait:   100 * time.Millisecond, // so that some get a 409
	}, watermill.NewStdLogger(false, false))
	if err != nil {
		return err
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(lis.Addr())
	orders := once(orderServer{handle{name: "child", url: url, db: db, pool: pool}, pub})
	go func() {
		_ = http.Serve(lis, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			orders.ServeHTTP(lateWriter{w}, r)
		}))
	}()
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// orderServer books orders: a row, an event, and a different response each time.
type orderServer struct {
	h   handle
	pub *outbox.Publisher
}

func (s orderServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = s.h.execTx(r.Context(), `insert into effects (message_id) values ($1)`, string(body))
	}
	if err == nil {
		err = s.pub.PublishContext(r.Context(), "orders", newMessage(string(body)))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	time.Sleep(rand.N(200 * time.Millisecond)) // time for a kill
	w.Header().Set("Location", "/orders/"+watermill.NewUUID())
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "%s is order %s\x00\xff", body, watermill.NewUUID())
}

// lateWriter responds some time after COMMIT, so that a kill can happen in between.
type lateWriter struct{ http.ResponseWriter }

func (w lateWriter) WriteHeader(status int) {
	time.Sleep(rand.N(50 * time.Millisecond))
	w.ResponseWriter.WriteHeader(status)
}

// httpServer is a process that is killed and restarted.
type httpServer struct {
	mu   sync.Mutex
	addr string // "" while it is down
	kill func()
}

func (s *httpServer) start(t testing.TB, url string) {
	t.Helper()
	p := newProcess(t, "http", url)
	p.cmd.Stdout = nil
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.start(t)
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err, "%s", p.log)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addr, s.kill = strings.TrimSpace(line), p.kill
}

func (s *httpServer) address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

// die kills it in the middle of its work.
func (s *httpServer) die() {
	s.mu.Lock()
	kill := s.kill
	s.mu.Unlock()
	kill()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addr = ""
}

// httpClients repeat their requests.
type httpClients struct {
	t       *testing.T
	servers [2]*httpServer
	client  http.Client

	cut      atomic.Int64 // connections that broke after the request was sent
	gone     atomic.Int64 // requests whose client did not wait
	refused  atomic.Int64 // 409 and 503
	replayed atomic.Int64 // stored responses that were replayed
	lost     atomic.Int64 // orders whose first response was lost: the first one seen was a replay
}

// ask sends a request once, to any server that is up.
func (c *httpClients) ask(key string) (answered, bool) {
	addr := c.servers[rand.N(len(c.servers))].address()
	if addr == "" {
		return answered{}, false
	}
	patient := rand.N(8) > 0
	wait := patience
	if !patient {
		wait = 100 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), wait)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/orders", strings.NewReader(key))
	if err != nil {
		c.t.Error(err)
		return answered{}, false
	}
	r.Header.Set(idempotency.HeaderKey, key)
	resp, err := c.client.Do(r)
	var body []byte
	if err == nil {
		body, err = io.ReadAll(resp.Body)
		_ = resp.Body.Close()
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		c.gone.Add(1)
		return answered{}, false
	case errors.Is(err, syscall.ECONNREFUSED):
		return answered{}, false
	case err != nil:
		c.cut.Add(1)
		return answered{}, false
	}
	a := answered{resp.StatusCode, resp.Header, string(body)}
	switch {
	case a.status == http.StatusConflict, a.status == http.StatusServiceUnavailable:
		c.refused.Add(1)
		return a, false
	case a.status != http.StatusCreated:
		c.t.Errorf("answer %d: %s", a.status, a.body)
	case a.replayed():
		c.replayed.Add(1)
	}
	return a, true
}

// order repeats a request until it gets a response, and then once more.
func (c *httpClients) order(key string) {
	var first answered
	for n := 0; n < 2 && c.t.Context().Err() == nil; {
		a, ok := c.ask(key)
		if !ok {
			time.Sleep(rand.N(20 * time.Millisecond))
			continue
		}
		if n++; n == 1 {
			if first = a; a.replayed() {
				c.lost.Add(1)
			}
			continue
		}
		assert.True(c.t, a.replayed(), key)
		assert.Equal(c.t, first.body, a.body)
		assert.Equal(c.t, first.header.Get("Location"), a.header.Get("Location"))
	}
}

// TestHTTPUnderKill: two servers are killed continuously, and clients repeat each request until it gets a response.
// Each is carried out once, with one event, and all responses are the same. OUTBOX_LONG sends 10,000 requests.
func TestHTTPUnderKill(t *testing.T) {
	extended(t)
	h := onPgx(t)
	n := rounds(500, 10_000)
	// On a reused connection net/http itself repeats a request that has an idempotency key: then none would be cut.
	c := &httpClients{t: t, client: http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	for i := range c.servers {
		c.servers[i] = &httpServer{}
		c.servers[i].start(t, h.url)
	}
	keys := make(chan string)
	var clients sync.WaitGroup
	for range 32 {
		clients.Go(func() {
			for key := range keys {
				c.order(key)
			}
		})
	}
	go func() {
		defer close(keys)
		for i := range n {
			select {
			case keys <- fmt.Sprintf("order-%d", i):
			case <-t.Context().Done():
				return
			}
		}
	}()
	done := make(chan struct{})
	go func() {
		clients.Wait()
		close(done)
	}()
	kills := 0
	for over := false; !over; {
		select {
		case <-done:
			over = true
		case <-time.After(300*time.Millisecond + rand.N(400*time.Millisecond)):
			s := c.servers[kills%len(c.servers)]
			s.die()
			s.start(t, h.url)
			kills++
		}
	}
	counts := fmt.Sprintf("%d requests, %d servers killed: %d connections cut, %d clients gone, %d refused, "+
		"%d responses replayed, %d of them instead of a lost one", n, kills, c.cut.Load(), c.gone.Load(),
		c.refused.Load(), c.replayed.Load(), c.lost.Load())
	t.Log(counts)
	for what, n := range map[string]int64{
		"kills": int64(kills), "cut": c.cut.Load(), "gone": c.gone.Load(), "lost": c.lost.Load(),
	} {
		assert.Positive(t, n, "%s: the run proves nothing: %s", what, counts)
	}
	ledger := func(what, query string) {
		var found string
		require.NoError(t, h.pool.QueryRow(t.Context(), `select coalesce(json_agg(l), '[]') from (`+query+`) l`).Scan(&found))
		var odd []json.RawMessage
		require.NoError(t, json.Unmarshal([]byte(found), &odd))
		assert.Empty(t, odd, what)
	}
	every := fmt.Sprintf(`(select 'order-' || i as key from generate_series(0, %d) i) k`, n-1)
	ledger("rows", `select k.key, count(message_id) from `+every+
		` full join effects on message_id = k.key group by k.key having count(message_id) <> 1 or k.key is null limit 5`)
	ledger("events", `select k.key, count(id) from `+every+
		` full join outbox on convert_from(payload, 'UTF8') = k.key group by k.key `+
		`having count(id) <> 1 or k.key is null limit 5`)
	assert.Equal(t, n, h.count(t, "select count(*) from outbox_idempotency"), "answers")
}
