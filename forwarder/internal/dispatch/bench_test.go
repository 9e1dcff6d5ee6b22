package dispatch_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

// BenchmarkMessage measures the dispatcher's cost per message, from the read to forgetting the settled row, with keys
// of one message each, one key for all, and no keys.
func BenchmarkMessage(b *testing.B) {
	const batch = 4096
	for _, kind := range []string{"keys", "one key", "no key"} {
		b.Run(kind, func(b *testing.B) {
			bd := dispatch.New(dispatch.Config{Concurrency: 64, Rows: 8192})
			now := time.Unix(1e9, 0)
			for lane := range int16(dispatch.Lanes) {
				bd.LaneTaken(now, dispatch.NewTakenLane(now, dispatch.Assignment{Lane: lane, Epoch: 1}, nil))
			}
			terms := make([]dispatch.LaneRead, dispatch.Lanes)
			keys := make([]string, batch)
			for i := range keys {
				switch kind {
				case "keys":
					keys[i] = "order/" + strconv.Itoa(i)
				case "one key":
					keys[i] = "order/0"
				}
			}
			payload := make([]byte, 100)
			id := int64(0)
			b.ReportAllocs()
			for n := 0; n < b.N; {
				b.StopTimer()
				rows := make([]dispatch.Row, batch)
				ready := make([]*dispatch.Row, 0, batch)
				size := batch
				if kind == "one key" {
					size = 128 // maximum kept per key
				}
				for i := range size {
					lane := int16(i * dispatch.Lanes / size)
					if kind == "one key" {
						lane = 0
					}
					id++
					rows[i] = dispatch.Row{
						ID: id, Assignment: dispatch.Assignment{Lane: lane, Epoch: 1}, Key: keys[i], Topic: "orders",
						Payload: payload, CreatedAt: now,
					}
					ready = append(ready, &rows[i])
				}
				for lane := range terms {
					terms[lane] = dispatch.LaneRead{Assignment: dispatch.Assignment{Lane: int16(lane), Epoch: 1}, Cursor: id}
				}
				b.StartTimer()
				a := bd.ReadBegins(now)
				bd.RowsRead(now, a, dispatch.Read{Lanes: terms, Ready: ready})
				bd.Effects()
				for c := bd.Next(now, nil); c != nil; c = bd.Next(now, nil) {
					bd.Returned(now, c, dispatch.Result{})
					bd.Effects()
					n++
				}
				published, failed := bd.Results(10000)
				bd.Settled(now, published, nil)
				if len(failed) > 0 {
					b.Fatal("failed")
				}
			}
		})
	}
}
