package integration_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestOutboxctlHidesSecrets gives passwords in all places in which there can be one, and makes all errors that may quote them.
func TestOutboxctlHidesSecrets(t *testing.T) {
	t.Parallel()
	good, err := url.Parse(newDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	host := good.Host
	const user = "postgres://127.0.0.1:" // where an unescaped password makes a host of it
	for _, canary := range []string{"canary", "can@ry", "can/ary#x", "can'ary y", "c%61nary", "can?a=b&c", "can:ary", "[canary"} {
		escaped := url.QueryEscape(canary)
		for _, dsn := range []string{
			"postgres://u:" + escaped + "@" + host + "/none?sslmode=disable", user + canary + "@" + host + "/none", user + canary + "@[::1",
			user + canary + "@127.0.0.1:1/x", user + canary + "@127.0.0.1:port/x", user + canary + "@127.0.0.1:1,127.0.0.1:2/x", "postgres://127.0.0.1:1/x?user=u&password=" + escaped, "postgres://127.0.0.1:1/x?sslpassword=" + escaped,
			"host=127.0.0.1 port=1 user=u password=" + canary, "host=127.0.0.1 port=1 password='" + canary, "host=127.0.0.1 port=1 password = '" + canary + "' dbname",
			"password=" + canary + " sslmode=maybe", "user=u password=" + canary + " host=", "mysql://127.0.0.1:" + canary + "@x/y", "u:" + canary + "@x/y",
		} {
			for _, args := range [][]string{{"--dsn", dsn, "stats"}, {"--dsn=" + dsn, "--timeout", "1s", "messages", "list"}, {"stats"}, {"stats", "--help"}, {"help"}} {
				r := ctl{t: t, url: dsn}.run(args...)
				for _, form := range []string{"canary", canary, escaped} {
					assert.NotContains(t, r.out+r.err, form, "%q %q", dsn, args)
				}
			}
		}
	}
	// One in the wrong place is known by its shape.
	for _, args := range [][]string{{"postgres://u:canary@h/x"}, {"stats", "postgres://u:canary@h/x"}, {"stats", "password=canary"}, {"messages", "list", "--postgres://u:canary@h"}} {
		r := ctl{t: t}.run(args...)
		assert.Equal(t, 2, r.code)
		assert.False(t, strings.Contains(r.out+r.err, "canary"), r.err)
	}
}
