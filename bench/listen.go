package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/watermill-outbox/internal/core"
)

// listen is a worker that only counts the notifications of the outbox.
func listen(cfg workerConfig) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	pool, err := pgxpool.New(ctx, cfg.URL)
	if err != nil {
		return err
	}
	defer pool.Close()
	var received atomic.Int64 // the first one shows that it is listening
	ended := make(chan error, 1)
	d, err := open(cfg.URL, pool)
	if err != nil {
		return err
	}
	go func() { ended <- (*core.DB)(d.db).Listen(ctx, func(core.Notification) { received.Add(1) }) }()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		for received.Load() == 0 {
			select {
			case err := <-ended:
				return err
			case <-time.After(time.Millisecond):
			}
		}
		fmt.Println(received.Load() - 1)
	}
	cancel()
	<-ended
	return nil
}
