package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

var running *bench

func TestMain(m *testing.M) {
	stop := services.StopOnSignal()
	postgres, err := services.StartPostgres(context.Background(), services.Options{Log: io.Discard})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	running = &bench{postgres: postgres, rounds: 1, scale: 1}
	code := m.Run()
	_ = stop()
	os.Exit(code)
}

func freshDatabase(tb testing.TB) *database {
	d, err := running.newDatabase(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(d.drop)
	return d
}

// BenchmarkPublish writes messages to the outbox; one operation is one message.
func BenchmarkPublish(b *testing.B) {
	for _, perTx := range []int{1, 100} {
		b.Run(fmt.Sprintf("per_tx=%d", perTx), func(b *testing.B) {
			d := freshDatabase(b)
			d, err := d.silent()
			if err != nil {
				b.Fatal(err)
			}
			pub, err := outbox.NewPublisher(d.db, outbox.PublisherConfig{}, nil)
			if err != nil {
				b.Fatal(err)
			}
			msgs := make([]*message.Message, b.N)
			for i := range msgs {
				msgs[i] = messageOf(i)
			}
			b.ReportAllocs()
			b.SetBytes(payloadBytes)
			b.ResetTimer()
			for first := 0; first < b.N; first += perTx {
				some := msgs[first:min(first+perTx, b.N)]
				err := outbox.InTx(b.Context(), d.db, func(ctx context.Context) error {
					return pub.PublishContext(ctx, topic, some...)
				})
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkForward publishes the outbox to a publisher that does nothing; one operation is one message.
func BenchmarkForward(b *testing.B) {
	for name, cfg := range map[string]forwarder.Config{"keep": {}, "delete": {Retention: -1}} {
		b.Run(name, func(b *testing.B) {
			d := freshDatabase(b)
			if err := d.backlog(b.Context(), b.N); err != nil {
				b.Fatal(err)
			}
			s := newSink(b.N)
			b.ReportAllocs()
			b.SetBytes(payloadBytes)
			b.ResetTimer()
			f, stop, err := d.forward(b.Context(), s, cfg)
			if err != nil {
				b.Fatal(err)
			}
			if err := s.wait(b.Context()); err != nil {
				b.Fatal(err)
			}
			if err := f.Drain(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			if err := stop(); err != nil {
				b.Fatal(err)
			}
			if err := s.check(); err != nil {
				b.Fatal(err)
			}
		})
	}
}
