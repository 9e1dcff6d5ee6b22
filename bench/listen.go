package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/schema"
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
	var heard atomic.Int64 // the first says that listening has begun
	ended := make(chan error, 1)
	go func() {
		ended <- outbox.FromPgx(pool).Listen(ctx, schema.Names{}.Channel(), func() { heard.Add(1) })
	}()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		for heard.Load() == 0 {
			select {
			case err := <-ended:
				return err
			case <-time.After(time.Millisecond):
			}
		}
		fmt.Println(heard.Load() - 1)
	}
	cancel()
	<-ended
	return nil
}
