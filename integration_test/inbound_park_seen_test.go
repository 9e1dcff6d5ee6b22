//go:build unix

package integration_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/admin/ui"
	"github.com/millrace-go/watermill-outbox/observe/prom"
)

// TestParkIsSeen: what is parked, since when and why is in all that operators look at; and that nobody delivers it.
func TestParkIsSeen(t *testing.T) {
	t.Parallel()
	w := newInboundWorld(t, 1)
	ad := newAdmin(t, w.h)
	findings := func(check string) []admin.Finding {
		all, err := ad.Doctor(t.Context())
		require.NoError(t, err)
		return slices.DeleteFunc(all, func(f admin.Finding) bool { return f.Check != check })
	}
	keys, err := ad.ParkedKeys(t.Context())
	require.NoError(t, err)
	assert.Empty(t, keys, "nothing was ever parked")
	assert.Empty(t, findings("parked"))

	w.send(1000, 20)
	c, mend := w.parks()
	service := w.serve(c, failsUntilMended(w.h))
	var failing []string
	for _, key := range []string{"key-0", "key-1", "key-2"} {
		if w.sent[key] > 0 {
			failing = append(failing, key)
		}
	}
	eventually(t, func() bool {
		keys, err = ad.ParkedKeys(t.Context())
		require.NoError(t, err)
		return len(keys) == len(failing) &&
			!slices.ContainsFunc(keys, func(k admin.ParkedKey) bool { return k.Attempts == 0 || !k.Delivered })
	}, "all keys that fail are parked and retried")
	for _, k := range keys {
		assert.Contains(t, failing, k.Key)
		assert.Equal(t, w.group+" "+w.topic, k.Group+" "+k.Topic)
		assert.Equal(t, "outbox: the message was nacked: fails", k.LastError)
		assert.Positive(t, k.Messages)
		assert.WithinDuration(t, time.Now(), k.Since, 5*time.Minute)
	}
	found := findings("parked")
	require.Len(t, found, 1)
	assert.Equal(t, admin.Info, found[0].Severity, "it has just begun")
	assert.Contains(t, found[0].Evidence, "keys of topic \""+w.topic+"\", parked by consumer group \""+w.group+"\"")
	assert.Contains(t, found[0].Evidence, "fails")
	assert.Empty(t, findings("parked_undelivered"))

	operator := ctl{t: t, url: w.h.url}
	listed := operator.run("keys", "parked")
	assert.Contains(t, listed.out, "key-", listed.err)
	assert.Contains(t, operator.run("stats").out, "Parked keys")
	assert.Contains(t, newSite(t, w.h, ui.Access{}).get("/").body, "Parked keys")
	of := "{group=" + w.group + ",topic=" + w.topic + "}"
	collector := newCollector(t, w.h, prom.CollectorConfig{})
	shows(t, collector, map[string]float64{"parked_keys" + of: float64(len(failing)), "parked_undelivered" + of: 0})
	assert.Positive(t, scraped(t, collector)["parked_messages"+of])

	// A message is given up in the inbox. The last command that doctor prints skips the first of the oldest key.
	assert.Contains(t, found[0].Cure, "discard it in the inbox, where it is failing (outboxctl inbox list ")
	command := found[0].Cure[strings.LastIndex(found[0].Cure, "(outboxctl ")+len("(outboxctl "):]
	command = strings.NewReplacer("'", "", "WHY", "refunded").Replace(command[:strings.Index(command, ")")])
	before := w.parked()
	skipped := operator.run(append(strings.Fields(command), "--yes")...)
	require.Zero(t, skipped.code, "%s: %s%s", command, skipped.out, skipped.err)
	assert.Less(t, w.parked(), before)

	service.close()
	w.h.exec(t, `update outbox_parked set created_at = created_at - interval '1 hour'`)
	found = findings("parked_undelivered")
	require.Len(t, found, 1)
	assert.Equal(t, admin.Critical, found[0].Severity)
	shows(t, collector, map[string]float64{"parked_undelivered" + of: 1})

	mend()
	w.serve(c, failsUntilMended(w.h))
	eventually(t, func() bool { return w.parked() == 0 }, "the keys leave")
	shows(t, collector, map[string]float64{"parked_keys" + of: 0, "parked_undelivered" + of: 0})
	assert.Empty(t, findings("parked"))
}
