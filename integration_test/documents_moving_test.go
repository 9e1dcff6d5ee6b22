package integration_test

import (
	"context"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/forwarder"
)

// movingPage returns docs/guides/moving.md: its commands and statements in order, by heading.
func movingPage(t testing.TB) (page map[string][]string) {
	t.Helper()
	text, err := os.ReadFile("../docs/guides/moving.md")
	require.NoError(t, err)
	page = map[string][]string{}
	heading := ""
	for _, found := range regexp.MustCompile("(?ms)^#+ ([^\n]*)$|^```(sh|sql)\n(.*?)^```").FindAllStringSubmatch(
		string(text), -1) {
		switch {
		case found[1] != "":
			heading = found[1]
		case found[2] == "sql":
			page[heading] = append(page[heading], found[3])
		default:
			page[heading] = append(page[heading], strings.Split(strings.TrimSpace(found[3]), "\n")...)
		}
	}
	return page
}

// stranger follows the page on a database.
type stranger struct {
	t    *testing.T
	h    handle
	said string // output of the last command
}

// does runs the next blocks of a heading, commands and statements alike.
func (s *stranger) does(blocks ...string) {
	s.t.Helper()
	for _, block := range blocks {
		if command, ok := strings.CutPrefix(block, "outboxctl "); ok {
			r := ctl{t: s.t, url: s.h.url}.run(words(command)...)
			require.Zero(s.t, r.code, "%s: %s%s", block, r.out, r.err)
			s.said = r.out
			continue
		}
		if strings.HasPrefix(block, "SELECT") {
			s.said = itoa(s.h.count(s.t, strings.TrimSuffix(strings.TrimSpace(block), ";")))
			continue
		}
		s.h.exec(s.t, block)
	}
}

// TestMovingPage: following only the page, 2,000 messages that wait for Watermill's forwarder are moved to ours, which
// sends half of them, and back to Watermill's, which sends the rest. None is lost, and each customer's are in order.
func TestMovingPage(t *testing.T) {
	extended(t)
	parallel(t)
	const all, customers = 2000, 50
	page := movingPage(t)
	there, back := page["Which way"], page["The way back"]
	require.Len(t, there, 4)
	require.Len(t, back, 3)

	h := newPgxHandle(t, newDatabase(t))
	old := newOldForwarder(t, moveTables[0], h.url)
	var batch []*message.Message
	for i := range all {
		msg := newMessage(itoa(i))
		msg.Metadata.Set("customer_id", itoa(i%customers))
		if batch = append(batch, msg); len(batch) == 500 {
			require.NoError(t, old.pub.Publish("orders", batch...))
			batch = nil
		}
	}
	old.visible(t, h)
	s := stranger{t: t, h: h}
	drained := there[3]
	s.does(drained)
	assert.Equal(t, "2000", s.said)
	s.does(there[:2]...)
	assert.Contains(t, s.said, "2,000 messages (orders 2,000)")
	ctl := ctl{t: t, url: h.url}
	assert.Equal(t, 2, ctl.run("import", "watermill-sql").code, "not confirmed")
	assert.Equal(t, 2, ctl.run("import", "watermill-sql", "--key", "metadata:", "--yes").code)
	assert.JSONEq(t, `{"dry_run": true, "pending": 2000, "left": 2000, "moved": 2000, "topics": {"orders": 2000}}`,
		ctl.run("import", "watermill-sql", "--dry-run", "-o", "json").out)
	s.does(there[2])
	assert.Equal(t, "Moved 2,000 messages (orders 2,000); entry 1 of the audit log.\n", s.said)
	s.does(drained)
	assert.Equal(t, "0", s.said)

	// Our forwarder stops when its broker accepts no more messages.
	sent := newFakeBroker()
	enough, half := context.WithCancel(t.Context())
	var count atomic.Int64
	sent.answers(func(string, *message.Message) error {
		if count.Add(1) > all/2 {
			half()
			return errDown
		}
		return nil
	})
	fwd, err := forwarder.New(h.db, sent, forwarder.Config{PollInterval: 50 * time.Millisecond, Classify: classify}, nil)
	require.NoError(t, err)
	require.NoError(t, fwd.Run(enough))
	ours := len(sent.all())
	require.Equal(t, all/2, ours)
	sent.answers(nil)

	s.does(back[:2]...)
	assert.Contains(t, s.said, "Moved ")
	s.does(back[2])
	assert.Equal(t, "0", s.said)
	stop := old.run(t, sent)
	sent.arrives(t, numbered("", 0, all-1)...)
	stop()

	for customer := range customers {
		var want []string
		for i := customer; i < all; i += customers {
			want = append(want, itoa(i))
		}
		assert.Equal(t, want, sent.payloads(itoa(customer)), "the messages of customer %d", customer)
	}
	t.Logf("%d were sent by ours, %d by Watermill's forwarder", ours, all-ours)
}

// TestMovingPageAfterARestore: a table with transaction ids of the future is made movable.
func TestMovingPageAfterARestore(t *testing.T) {
	h := onPgx(t)
	old := newOldForwarder(t, moveTables[0], h.url)
	msgs := awkward(6)
	require.NoError(t, old.pub.Publish("orders", msgs...))
	h.exec(t, `update watermill_forwarder_topic set transaction_id = (1000000000 + "offset")::text::xid8`)
	h.exec(t,
		`update watermill_offsets_forwarder_topic set last_processed_transaction_id = '1000000002', offset_acked = 2`)
	s := stranger{t: t, h: h}
	r := ctl{t: t, url: h.url}.run("import", "watermill-sql", "--yes")
	assert.Equal(t, 1, r.code)
	assert.Contains(t, r.err, "After a restore")
	s.does(movingPage(t)["After a restore"]...)
	r = ctl{t: t, url: h.url}.run("import", "watermill-sql", "--dry-run", "--key", "metadata:custmer_id")
	assert.Contains(t, r.err, "no ordering key, so their order is not kept: 4 messages: see --key",
		"a misspelled name")
	assert.Empty(t, ctl{t: t, url: h.url}.run("import", "watermill-sql", "--dry-run", "--key", "topic").err)
	s.does("outboxctl import watermill-sql --yes")
	var pending []string
	for _, msg := range msgs[2:] {
		pending = append(pending, msg.UUID)
	}
	assert.Equal(t, pending, column[string](t, h, `select uuid from outbox order by id`))
}

// TestMovingPageBackToATable: the statement for moving back to a table of one's own moves the pending messages in
// order.
func TestMovingPageBackToATable(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `CREATE TABLE my_outbox (id bigserial, event_id uuid, topic text, aggregate_id text, body jsonb, headers jsonb,
		run_at timestamptz, sent_at timestamptz)`)
	h.publish(t, "orders", "k", "1", "2", "3")
	h.exec(t, "UPDATE outbox SET published_at = now() WHERE payload = '1'")
	blocks := movingPage(t)["From an outbox table of your own"]
	s := stranger{t: t, h: h}
	s.does(blocks[len(blocks)-1])
	assert.Equal(t, []string{"2", "3"},
		column[string](t, h, "SELECT body::text FROM my_outbox WHERE sent_at IS NULL ORDER BY id"))
	assert.Zero(t, h.count(t, "SELECT count(*)::int FROM outbox WHERE published_at IS NULL AND dead_at IS NULL"))
	assert.Equal(t, map[string]int{"done": 1, "discarded": 2}, h.states(t, "true"))
}
