//go:build unix

package integration_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestParkCloseWhilePostgresHangs: the end of a subscription does not wait for it.
func TestParkCloseWhilePostgresHangs(t *testing.T) {
	t.Parallel()
	w := newInboundWorld(t, 1)
	w.send(1000, 20)
	c, _ := w.parks()
	c.CloseTimeout = 2 * time.Second
	proxy := newSwitchProxy(t, w.h.url)
	s, err := startInbound(newPgxHandle(t, proxy.url), c, failsUntilMended(w.h), watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(s.close)
	w.awaitParked()
	proxy.freeze()
	t.Cleanup(proxy.thaw)
	begun := time.Now()
	require.NoError(t, s.sub.Close())
	assert.Less(t, time.Since(begun), c.CloseTimeout+5*time.Second+patience/10)
}
