package integration_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
)

// TestOutboxctlHidesSecrets puts passwords everywhere they can occur, and causes all errors that may quote them.
func TestOutboxctlHidesSecrets(t *testing.T) {
	t.Parallel()
	good, err := url.Parse(newDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	host := good.Host
	const user = "postgres://127.0.0.1:" // an unescaped password is parsed as a host
	for _, canary := range []string{
		"canary", "can@ry", "can/ary#x", "can'ary y", "c%61nary", "can?a=b&c", "can:ary", "[canary",
	} {
		escaped := url.QueryEscape(canary)
		for _, dsn := range []string{
			"postgres://u:" + escaped + "@" + host + "/none?sslmode=disable", user + canary + "@" + host + "/none",
			user + canary + "@[::1",
			user + canary + "@127.0.0.1:1/x", user + canary + "@127.0.0.1:port/x", user + canary + "@127.0.0.1:1,127.0.0.1:2/x",
			"postgres://127.0.0.1:1/x?user=u&password=" + escaped, "postgres://127.0.0.1:1/x?sslpassword=" + escaped,
			"host=127.0.0.1 port=1 user=u password=" + canary, "host=127.0.0.1 port=1 password='" + canary,
			"host=127.0.0.1 port=1 password = '" + canary + "' dbname",
			"password=" + canary + " sslmode=maybe", "user=u password=" + canary + " host=",
			"mysql://127.0.0.1:" + canary + "@x/y", "u:" + canary + "@x/y",
		} {
			for _, args := range [][]string{
				{"--dsn", dsn, "stats"}, {"--dsn=" + dsn, "--timeout", "1s", "outbox", "list"}, {"stats"},
				{"stats", "--help"}, {"help"},
			} {
				r := ctl{t: t, url: dsn}.run(args...)
				for _, form := range []string{"canary", canary, escaped} {
					assert.NotContains(t, r.out+r.err, form, "%q %q", dsn, args)
				}
			}
		}
	}
	// A password in the wrong place is recognised by its shape.
	for _, args := range [][]string{
		{"postgres://u:canary@h/x"}, {"stats", "postgres://u:canary@h/x"}, {"stats", "password=canary"},
		{"outbox", "list", "--postgres://u:canary@h"},
	} {
		r := ctl{t: t}.run(args...)
		assert.Equal(t, 2, r.code)
		assert.False(t, strings.Contains(r.out+r.err, "canary"), r.err)
	}
}

// TestOutboxctlHidesBrokerSecrets gives all broker commands, in all output formats, passwords that break URLs or that
// occur in error messages.
func TestOutboxctlHidesBrokerSecrets(t *testing.T) {
	h := onPgx(t)
	h.exec(t, "INSERT INTO outbox (uuid, topic, payload, published_at) VALUES ('u', 'orders', '', now())")
	c := ctl{t: t, url: h.url}
	for _, broker := range []string{
		"nats://ann:p/w@127.0.0.1:1", "ann:p/w@127.0.0.1:1", "nats://ann:1/p/w@127.0.0.1:1", `nats://ann:p"/w@127.0.0.1:1`,
		`nats://127.0.0.1:1,nats://ann:p\/w@127.0.0.1:1`,
	} {
		for _, command := range []string{
			"doctor", "doctor -o json", "check", "check -o json", "reconcile --all --dry-run",
			"reconcile --all --dry-run -o json", "forward --drain", "forward --drain --log json",
		} {
			for _, on := range []ctl{{t: t, url: h.url, env: []string{"OUTBOX_NATS=" + broker}}, c} {
				args := words(command)
				if on.env == nil {
					args = append(args, "--nats", broker)
				}
				r := on.run(args...)
				assert.NotZero(t, r.code, command)
				assert.NotRegexp(t, `p\W*/w|/w@`, r.out+r.err, command)
				assert.Contains(t, r.out+r.err, "--nats: server ", command)
				if strings.HasPrefix(command, "check -o") {
					assert.True(t, json.Valid([]byte(r.out)), r.out)
				}
			}
		}
	}
	const said = "127.0.0.1:1" // every connection error contains it; other ports have the same prefix
	c.env = []string{"OUTBOX_KAFKA_PASSWORD=" + said}
	for _, command := range []string{"doctor", "doctor -o json", "check", "check -o json"} {
		r := c.run(append(words(command), "--kafka", said, "--kafka-user", "ann")...)
		assert.Contains(t, r.out, "could not check the broker", command)
		assert.Contains(t, r.out, "***", command)
		assert.NotRegexp(t, `127\.0\.0\.1:1(\D|$)`, r.out+r.err, command)
	}
}

// TestOutboxctlServesNoSecrets searches the page, and its log when the tables are gone, for the database password.
func TestOutboxctlServesNoSecrets(t *testing.T) {
	h := onPgx(t)
	at, err := url.Parse(h.url)
	require.NoError(t, err)
	at.User = url.UserPassword(at.User.Username(), `zq7xk"zx9kq`)
	get, end := ctl{t: t, url: at.String()}.serve("--listen", "127.0.0.1:0")
	code, fine := get("", "")
	assert.Equal(t, http.StatusOK, code)
	h.exec(t, "DROP TABLE outbox")
	code, broken := get("message?in=outbox&id=1", "")
	assert.NotEqual(t, http.StatusOK, code)
	r := end()
	for _, all := range []string{fine, broken, r.out, r.err} {
		for _, half := range []string{"zq7xk", "zx9kq"} { // with any kind of quoting
			assert.NotContains(t, all, half)
		}
	}
}

var address = regexp.MustCompile(`http://[][0-9.:]+/`)

// serve runs serve until end is called. get requests a page with a Host header, "" = the server's own, and perhaps
// another header.
func (c ctl) serve(args ...string) (
	get func(path, host string, header ...string) (code int, body string), end func() ctlResult,
) {
	c.t.Helper()
	log := &watched{}
	end = c.start(log, append([]string{"serve"}, args...)...)
	eventually(c.t, func() bool { return address.MatchString(log.String()) }, "the command prints its address: %s", log)
	base := strings.Replace(address.FindString(log.String()), "[::]", "127.0.0.1", 1)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return func(path, host string, header ...string) (int, string) {
		c.t.Helper()
		r, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, base+path, nil)
		require.NoError(c.t, err)
		if r.Host = host; host == "" {
			r.Host = r.URL.Host
		}
		if len(header) > 0 {
			r.Header.Set(header[0], header[1])
		}
		answer, err := client.Do(r)
		require.NoError(c.t, err)
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		require.NoError(c.t, err)
		return answer.StatusCode, string(body)
	}, end
}

// TestOutboxctlServes: only permitted users may see the page and act on it.
func TestOutboxctlServes(t *testing.T) {
	h := onPgx(t)
	fillOutboxctl(t, h)
	c := ctl{t: t, url: h.url}

	get, end := c.serve("--listen", "127.0.0.1:0", "--title", "Shop <b>")
	code, body := get("", "")
	assert.Equal(t, http.StatusOK, code)
	assert.Contains(t, body, "Shop &lt;b&gt;")
	code, _ = get("", "localhost")
	assert.Equal(t, http.StatusOK, code)
	for _, host := range []string{"evil.example", "evil.example:80", "127.0.0.1.evil.example"} {
		// a name that an attacker resolved to this server
		code, _ = get("", host)
		assert.Equal(t, http.StatusMisdirectedRequest, code, host)
		code, _ = get("ready", host) // a probe of Kubernetes has the address of the pod
		assert.Equal(t, http.StatusOK, code, host)
	}
	code, body = get("message?in=outbox&id=3", "")
	assert.Equal(t, http.StatusOK, code)
	assert.NotContains(t, body, "&#34;n&#34;")
	r := end()
	assert.Zero(t, r.code, r.err)

	get, end = c.serve("--listen", "127.0.0.1:0", "--actor-header", "X-User", "--payloads")
	code, _ = get("", "")
	assert.Equal(t, http.StatusForbidden, code)
	code, _ = get("", "", "X-User", "carol")
	assert.Equal(t, http.StatusOK, code)
	code, _ = get("", "evil.example", "X-User", "carol") // such a site sends any header
	assert.Equal(t, http.StatusMisdirectedRequest, code)
	assert.Zero(t, end().code)

	for _, listen := range []string{"127.0.0.1:0", "0.0.0.0:0"} {
		get, end = c.serve("--listen", listen, "--actor-header", "X-User",
			"--host", "outbox.example.com,other.example.com")
		for host, want := range map[string]int{
			"Outbox.example.com": http.StatusOK, "other.example.com:8080": http.StatusOK, "localhost": http.StatusOK,
			"evil.example": http.StatusMisdirectedRequest,
		} {
			code, _ = get("", host, "X-User", "carol")
			assert.Equal(t, want, code, "%s on %s", host, listen)
		}
		assert.Zero(t, end().code)
	}

	nats := natsServer(t)
	h.exec(t, "INSERT INTO outbox (uuid, topic, payload) VALUES ('u', 'no-such-stream', '')")
	const missing = "broker that was checked has topic"
	get, end = c.serve("--listen", "127.0.0.1:0")
	_, body = get("", "")
	assert.False(t, strings.Contains(body, missing), "no broker is checked")
	assert.Zero(t, end().code)
	get, end = c.serve("--listen", "127.0.0.1:0", "--nats", nats.URL())
	_, body = get("", "")
	assert.True(t, strings.Contains(body, missing), "the page shows what doctor finds")
	assert.Zero(t, end().code)

	for _, open := range [][]string{{"--act"}, {"--payloads"}} {
		r = c.run(append([]string{"serve", "--listen", "0.0.0.0:0"}, open...)...)
		assert.Equal(t, 2, r.code)
		assert.Contains(t, r.err, "--actor-header")
	}
	r = c.run("serve", "--listen", "nowhere")
	assert.Equal(t, 1, r.code)
}

// TestOutboxctlChecks runs check, as a monitoring system does, on healthy, failing and unreachable outboxes.
func TestOutboxctlChecks(t *testing.T) {
	h := onPgx(t)
	c := ctl{t: t, url: h.url}
	check := func(code int, line string, args ...string) {
		t.Helper()
		r := c.run(append([]string{"check"}, args...)...)
		assert.Equal(t, code, r.code, r.out+r.err)
		assert.Equal(t, 1, strings.Count(r.out, "\n"), r.out)
		assert.Contains(t, r.out, line)
		onlyPrints(t, r.out, args)
	}
	h.exec(t, "INSERT INTO outbox (uuid, topic, payload, created_at) VALUES ('u', E'orders\\x1b[2J', '', "+
		"now() - interval '1 hour')")
	check(2, "OUTBOX CRITICAL - forwarders: ")
	r := c.run("check", "-o", "json")
	var status struct {
		Status   string
		Code     int
		Findings []admin.Finding
	}
	require.NoError(t, json.Unmarshal([]byte(r.out), &status))
	assert.Equal(t, "critical", status.Status)
	assert.Equal(t, 2, status.Code)
	assert.NotEmpty(t, status.Findings)
	assert.Equal(t, admin.Critical, status.Findings[0].Severity)

	r = c.run("doctor")
	assert.Zero(t, r.code, r.err)
	for _, f := range status.Findings {
		assert.Contains(t, r.out, f.Check)
	}
	onlyPrints(t, r.out, "doctor")
	r = c.run("doctor", "-o", "json")
	assert.True(t, json.Valid([]byte(r.out)))

	check(3, "OUTBOX UNKNOWN - ", "--no-such-flag")
	check(3, "OUTBOX UNKNOWN - ", "argument")
	check(3, "OUTBOX UNKNOWN - ", "--output", "xml")
	c.url = "postgres://u:canary@127.0.0.1:1/x"
	check(3, "OUTBOX UNKNOWN - ")
	check(3, `{"status":"unknown","code":3`, "-o", "json")
	assert.NotContains(t, c.run("check").out, "canary")
	c.url = newDatabase(t)
	check(2, "OUTBOX CRITICAL - schema: ")
}
