package services

import (
	"io"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

func TestNATS(t *testing.T) {
	t.Parallel()
	ctx := within(t, 5*time.Minute)
	n, err := StartNATS(ctx, Options{Log: io.Discard})
	must(t, err)
	address := n.URL()

	conn, err := nats.Connect(address, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	must(t, err)
	defer conn.Close()
	js, err := conn.JetStream(nats.MaxWait(20 * time.Second))
	must(t, err)
	_, err = js.AddStream(&nats.StreamConfig{Name: "kept", Subjects: []string{"kept"}, Storage: nats.FileStorage})
	must(t, err)
	_, err = js.Publish("kept", []byte("one"))
	must(t, err)

	must(t, n.Stop())
	eventually(t, "the client sees the server stop", func() bool { return !conn.IsConnected() })
	must(t, n.Restart(ctx))
	if n.URL() != address {
		t.Errorf("URL changed to %s", n.URL())
	}
	eventually(t, "the client is connected again", conn.IsConnected)
	info, err := js.StreamInfo("kept")
	must(t, err)
	if info.State.Msgs != 1 {
		t.Errorf("%d messages after Restart, want 1", info.State.Msgs)
	}

	must(t, n.Close())
	must(t, n.Close())
	wantNoFolder(t, n.folder)
	if err := n.Restart(ctx); err == nil {
		t.Error("Restart after Close did not fail")
	}
}
