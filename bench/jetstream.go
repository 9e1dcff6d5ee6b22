package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"

	"github.com/millrace-go/watermill-outbox/nats"
)

type jetStream struct {
	url    string
	server *worker
	conn   *natsgo.Conn
	js     natsgo.JetStreamContext
}

// startJetStream starts a server with default settings in its own process.
func (b *bench) startJetStream(ctx context.Context) (broker, error) {
	j := &jetStream{}
	var err error
	if j.server, err = startWorker(ctx, workerConfig{NATS: true}); err != nil {
		return nil, err
	}
	if j.url, err = j.server.ask("url"); err != nil {
		return nil, errors.Join(err, j.server.close())
	}
	if j.conn, err = natsgo.Connect(j.url); err == nil {
		j.js, err = j.conn.JetStream()
	}
	if err != nil {
		j.close()
		return nil, err
	}
	return j, nil
}

func serveNATS() error {
	dir, err := os.MkdirTemp("", "outbox-bench-nats-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true,
	})
	if err != nil {
		return err
	}
	s.Start()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Println(s.ClientURL())
	}
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}

func (j *jetStream) publisher() (message.Publisher, error) {
	return nats.NewPublisher(nats.PublisherConfig{URL: j.url}, nil)
}

func (j *jetStream) create(topic string) error {
	_, err := j.js.AddStream(&natsgo.StreamConfig{Name: topic, Subjects: []string{topic}, Storage: natsgo.FileStorage})
	return err
}

func (j *jetStream) stored(topic string) (int, error) {
	info, err := j.js.StreamInfo(topic)
	if err != nil {
		return 0, err
	}
	return int(info.State.Msgs), nil
}

func (j *jetStream) remove(topic string) { _ = j.js.DeleteStream(topic) }

func (j *jetStream) close() {
	if j.conn != nil {
		j.conn.Close()
	}
	if j.server != nil {
		_ = j.server.close()
	}
}
