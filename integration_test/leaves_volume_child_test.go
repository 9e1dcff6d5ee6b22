//go:build unix

package integration_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// leavesChildEnv makes this test binary a forwarder, or a program that rolls, instead of running tests.
const leavesChildEnv = "OUTBOX_TEST_LEAVES_CHILD"

func init() {
	if spec := os.Getenv(leavesChildEnv); spec != "" {
		fmt.Fprintln(os.Stderr, runLeavesChild(spec))
		os.Exit(1)
	}
}

// leavesChild says what a process does, until it is killed or its parent is gone. It writes a line for each leaf, or
// for each 50 messages.
type leavesChild struct {
	URL  string
	Roll bool
	Leaf int64
}

func runLeavesChild(spec string) error {
	var c leavesChild
	if err := json.Unmarshal([]byte(spec), &c); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0) // the parent is gone
	}()
	pool, err := pgxpool.New(context.Background(), c.URL+"&pool_max_conns=8")
	if err != nil {
		return err
	}
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
	if err != nil {
		return err
	}
	pipe := &told{pipe: os.NewFile(3, "told")}
	if c.Roll {
		return rollForEver(db, c.Leaf, pipe)
	}
	cfg := orderConfig()
	cfg.CleanInterval = time.Second // then it looks whether the operator has discarded what blocks a key
	cfg.MaxAttempts, cfg.MinDeadAge, cfg.BlockKeyOnDead, cfg.Concurrency = 2, -1, true, 64
	f, err := forwarder.New(db, pipe, cfg, nil)
	if err != nil {
		return err
	}
	return f.Run(context.Background())
}

// rollForEver rolls as if each message were old as soon as it is settled.
func rollForEver(db *outbox.DB, leaf int64, to *told) error {
	a, err := admin.New(db, admin.Config{Actor: "cron"}, nil)
	if err != nil {
		return err
	}
	for {
		var was admin.RollResult
		_, err := a.RollOutbox(context.Background(), admin.RollConfig{
			Retention: time.Millisecond, PartitionSize: leaf, Progress: func(_ context.Context, r admin.RollResult) {
				to.tell("rolled %d %d %d %d %d %d", r.Made-was.Made, r.Emptied-was.Emptied, r.Dropped-was.Dropped,
					r.Removed-was.Removed, r.PutBack-was.PutBack, r.Deleted-was.Deleted)
				was = r
				fmt.Println("step")
			},
		})
		switch text.SQLState(err) {
		case "57014", "25P03": // this machine was too busy to keep a leaf locked for as short a time as it must be
			continue
		}
		if err != nil {
			return err
		}
	}
}

// told is a publisher that tells the parent of each message before it returns. All processes write to the same pipe, so
// that the parent reads in the order in which brokers would have taken the messages.
type told struct {
	pipe      *os.File
	published atomic.Int64
}

var _ message.Publisher = (*told)(nil)

func (p *told) tell(format string, args ...any) {
	if _, err := fmt.Fprintf(p.pipe, format+"\n", args...); err != nil {
		os.Exit(3) // the parent is gone
	}
}

// Publish refuses some messages, more of those that are to fail, and now and then one that has arrived.
func (p *told) Publish(_ string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		payload := string(msg.Payload)
		limit := 2
		if strings.HasPrefix(payload, kindFails) {
			limit = 600
		}
		if rand.IntN(1000) < limit {
			return errRefused
		}
		p.tell("%s %s %d", msg.Metadata[outbox.MetadataKey], payload, time.Now().UnixMicro())
		if p.published.Add(1)%50 == 0 {
			fmt.Println("step")
		}
		if rand.IntN(1000) < 2 {
			return errRefused
		}
	}
	return nil
}

func (*told) Close() error { return nil }
