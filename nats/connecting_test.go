package nats_test

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/nats"
)

// errorsOf is a logger that passes on the errors of error lines.
type errorsOf struct {
	watermill.NopLogger
	lines chan error
}

func (l errorsOf) Error(_ string, err error, _ watermill.LogFields) { l.lines <- err }

// TestLogShowsWhyConnectingFails tries a port without TLS and a port without a listener.
func TestLogShowsWhyConnectingFails(t *testing.T) {
	for scheme, want := range map[string]string{"nats": "no servers available", "tls": "secure connection not available"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if scheme == "nats" {
			_ = l.Close()
		} else {
			go func() {
				for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
					_, _ = conn.Write([]byte(`INFO {"server_id":"x","max_payload":1048576}` + "\r\n"))
				}
			}()
			defer l.Close()
		}
		log := errorsOf{lines: make(chan error, 1000)}
		pub, err := nats.NewPublisher(nats.PublisherConfig{URL: scheme + "://" + l.Addr().String()}, log)
		if err != nil {
			t.Fatal(err)
		}
		defer pub.Close()
		select {
		case err := <-log.lines:
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: the error is %v, want %q", scheme, err, want)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s: no error", scheme)
		}
	}
}

// infosOf is a logger that passes on the fields of info lines.
type infosOf struct {
	watermill.NopLogger
	lines chan watermill.LogFields
}

func (l infosOf) Info(_ string, fields watermill.LogFields) { l.lines <- fields }

// TestLogHidesTokens: NATS treats a user without a password as a token.
func TestLogHidesTokens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			go func() {
				_, _ = conn.Write([]byte(`INFO {"server_id":"x","headers":true,"max_payload":1048576}` + "\r\n"))
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					if lines.Text() == "PING" {
						_, _ = conn.Write([]byte("PONG\r\n"))
					}
				}
			}()
		}
	}()
	log := infosOf{lines: make(chan watermill.LogFields, 100)}
	for _, who := range []string{"canary", "ann:canary"} {
		pub, err := nats.NewPublisher(nats.PublisherConfig{URL: "nats://" + who + "@" + l.Addr().String()}, log)
		if err != nil {
			t.Fatal(err)
		}
		defer pub.Close()
		select {
		case fields := <-log.lines:
			if said := fmt.Sprint(fields); strings.Contains(said, "canary") || !strings.Contains(said, l.Addr().String()) {
				t.Errorf("it logs %s", said)
			}
		case <-time.After(time.Minute):
			t.Fatal("it logs nothing")
		}
	}
}

// TestAConnectionThatIsClosedForGoodSaysSo: after some errors the client never connects again, such as when a reload of
// the server has lowered max_payload.
func TestAConnectionThatIsClosedForGoodSaysSo(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			go func() {
				_, _ = conn.Write([]byte(`INFO {"server_id":"x","headers":true,"max_payload":1048576}` + "\r\n"))
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					switch command, _, _ := strings.Cut(lines.Text(), " "); command {
					case "PING":
						_, _ = conn.Write([]byte("PONG\r\n"))
					case "HPUB":
						_, _ = conn.Write([]byte("-ERR 'Maximum Payload Violation'\r\n"))
					}
				}
			}()
		}
	}()
	pub, err := nats.NewPublisher(nats.PublisherConfig{
		URL: "nats://" + l.Addr().String(), AckTimeout: time.Second,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		err = pub.Publish("orders", message.NewMessage("1", nil))
		if err == nil || strings.Contains(err.Error(), "restart this process") || time.Since(begun) > time.Minute {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), "restart this process") ||
		nats.Classify(err) != forwarder.Unavailable {
		t.Errorf("got %v, want an error that says to restart", err)
	}
}
