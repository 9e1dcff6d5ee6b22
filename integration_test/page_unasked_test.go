package integration_test

import (
	"net/http"
	"net/url"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin/ui"
)

// TestPageAsksNothingUnbound: where the database does not say in time what there is now, nothing is asked: the answer
// would be bound to nothing.
func TestPageAsksNothingUnbound(t *testing.T) {
	t.Parallel()
	proxy := newProxy(t, newMigratedDatabase(t))
	h := newPgxHandle(t, proxy.url)
	fillOutbox(t, h, 60)
	fillInbox(t, h, 40)
	fillQueue(t, h, 60)
	before := tableStates(t, h)
	links := []string{
		"act?verb=requeue&in=outbox&state=dead&all=yes", "act?verb=requeue&in=inbox&state=dead&all=yes",
		"act?verb=requeue&in=queue&state=dead&all=yes",
	}
	asked := make([]reply, len(links))
	var done sync.WaitGroup
	proxy.freeze()
	for i, link := range links {
		s := newSite(t, h, ui.Access{Actor: "alice", Act: true})
		done.Go(func() { asked[i] = s.get(link) })
	}
	done.Wait()
	proxy.thaw()
	for i, link := range links {
		assert.Equal(t, http.StatusGatewayTimeout, asked[i].status, "%s: %.300s", link, textOf(t, asked[i].body))
		for _, input := range elements(t, asked[i].body, "input") {
			assert.Equal(t, "q", input["name"], "%s: only the search is there", link)
		}
	}
	s := newSite(t, h, ui.Access{Actor: "alice", Act: true})
	s.get("")
	for in, tried := range map[string]string{
		"inbox": "inbox.0.-62135596800000000.more", "queue": "queue.0.-62135596800000000.more", "outbox": "outbox.0.0.more",
	} {
		form := url.Values{
			"verb": {"requeue"}, "filter": {"in=" + in + "&state=dead&all=yes"}, "sure": {"yes"}, "preview": {tried},
		}
		require.Equal(t, http.StatusBadRequest, s.post(form).status, tried)
	}
	assert.Equal(t, before, tableStates(t, h))
}
