package integration_test

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestOutboxctlServes: only permitted users may see the page and act on it.
func TestOutboxctlServes(t *testing.T) {
	h := onPgx(t)
	fillOutboxctl(t, h)
	c := ctl{t: t, url: h.url}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	address := regexp.MustCompile(`http://[][0-9.:]+/`)
	serve := func(args ...string) (get func(path, host string, header ...string) (int, string), end func() ctlResult) {
		t.Helper()
		log := &watched{}
		end = c.start(log, append([]string{"serve"}, args...)...)
		eventually(t, func() bool { return address.MatchString(log.String()) }, "it prints its address: %s", log)
		base := strings.Replace(address.FindString(log.String()), "[::]", "127.0.0.1", 1)
		return func(path, host string, header ...string) (int, string) {
			t.Helper()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, nil)
			require.NoError(t, err)
			if r.Host = host; host == "" {
				r.Host = r.URL.Host
			}
			if len(header) > 0 {
				r.Header.Set(header[0], header[1])
			}
			answer, err := client.Do(r)
			require.NoError(t, err)
			defer answer.Body.Close()
			body, err := io.ReadAll(answer.Body)
			require.NoError(t, err)
			return answer.StatusCode, string(body)
		}, end
	}

	get, end := serve("--listen", "127.0.0.1:0", "--title", "Shop <b>")
	code, body := get("", "")
	assert.Equal(t, http.StatusOK, code)
	assert.Contains(t, body, "Shop &lt;b&gt;")
	code, _ = get("", "localhost")
	assert.Equal(t, http.StatusOK, code)
	for _, host := range []string{"evil.example", "evil.example:80", "127.0.0.1.evil.example"} {
		// a name that was made to resolve to this server
		code, _ = get("", host)
		assert.Equal(t, http.StatusMisdirectedRequest, code, host)
	}
	code, body = get("message?in=outbox&id=3", "")
	assert.Equal(t, http.StatusOK, code)
	assert.NotContains(t, body, "&#34;n&#34;")
	r := end()
	assert.Zero(t, r.code, r.err)

	get, end = serve("--listen", "127.0.0.1:0", "--actor-header", "X-User", "--payloads")
	code, _ = get("", "")
	assert.Equal(t, http.StatusForbidden, code)
	code, _ = get("", "", "X-User", "carol")
	assert.Equal(t, http.StatusOK, code)
	code, _ = get("", "evil.example", "X-User", "carol") // such a site sends any header it likes
	assert.Equal(t, http.StatusMisdirectedRequest, code)
	assert.Zero(t, end().code)

	for _, listen := range []string{"127.0.0.1:0", "0.0.0.0:0"} {
		get, end = serve("--listen", listen, "--actor-header", "X-User", "--host", "outbox.example.com,other.example.com")
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
	get, end = serve("--listen", "127.0.0.1:0")
	_, body = get("", "")
	assert.False(t, strings.Contains(body, missing), "no broker is checked")
	assert.Zero(t, end().code)
	get, end = serve("--listen", "127.0.0.1:0", "--nats", nats.URL())
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
