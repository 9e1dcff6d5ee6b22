package core

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/facts"
)

// hiddenPark is a database that has a park, which the role may not read.
type hiddenPark struct{ drive.Pool }

func (hiddenPark) Name() string { return "shop" }

func (hiddenPark) Query(_ context.Context, query string, args ...any) (drive.Rows, error) {
	if !strings.Contains(query, "has_any_column_privilege") {
		return nil, fmt.Errorf("asked for %s", query)
	}
	return &oneRow{}, nil
}

// oneRow says that the park is there, and may not be read.
type oneRow struct{ read bool }

func (r *oneRow) Next() bool {
	first := !r.read
	r.read = true
	return first
}

func (r *oneRow) Scan(dest ...any) error {
	*dest[0].(*bool), *dest[1].(*bool) = true, false
	return nil
}

func (*oneRow) Err() error   { return nil }
func (*oneRow) Close() error { return nil }

// TestHiddenParkIsTold: a subscription without Park that cannot see whether keys of its group are parked goes on, and
// says so once.
func TestHiddenParkIsTold(t *testing.T) {
	logger := watermill.NewCaptureLogger()
	pool := hiddenPark{}
	db, err := NewDB(pool, Config{DisableNotify: true}, logger)
	if err != nil {
		t.Fatal(err)
	}
	s := &Source{
		Blocked:  func() ([]facts.Partition, bool) { return nil, false },
		Unparked: ParkTopic("booking", "orders"),
	}
	for range 3 {
		parked, err := db.ReadsFrom(WithSource(context.Background(), s), pool)
		if parked || err != nil {
			t.Fatalf("parked %t: %v", parked, err)
		}
	}
	lines := logger.Captured()[watermill.ErrorLogLevel]
	if len(lines) != 1 || !strings.Contains(lines[0].Msg, "whether keys of this consumer group are parked") {
		t.Fatalf("the log says %+v", lines)
	}
	if of := lines[0].Fields["parked_topic"]; of != "booking/orders" {
		t.Errorf("it is about %v", of)
	}
}
