package board_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
)

// BenchmarkMessage is what the board costs per message: read, published, settled, forgotten, with keys of one
// message each, one key for all, and without any.
func BenchmarkMessage(b *testing.B) {
	const batch = 4096
	for _, kind := range []string{"keys", "one key", "no key"} {
		b.Run(kind, func(b *testing.B) {
			bd := board.New(board.Config{Concurrency: 64, Rows: 8192})
			now := time.Unix(1e9, 0)
			for lane := range int16(board.Lanes) {
				bd.LaneTaken(now, board.NewTaken(now, board.Term{Lane: lane, Epoch: 1}, nil))
			}
			terms := make([]board.TermRead, board.Lanes)
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
				rows := make([]board.Row, batch)
				ready := make([]*board.Row, 0, batch)
				size := batch
				if kind == "one key" {
					size = 128 // what is kept of one key
				}
				for i := range size {
					lane := int16(i * board.Lanes / size)
					if kind == "one key" {
						lane = 0
					}
					id++
					rows[i] = board.Row{
						ID: id, Term: board.Term{Lane: lane, Epoch: 1}, Key: keys[i], Topic: "orders", Payload: payload, CreatedAt: now,
					}
					ready = append(ready, &rows[i])
				}
				for lane := range terms {
					terms[lane] = board.TermRead{Term: board.Term{Lane: int16(lane), Epoch: 1}, Mark: id}
				}
				b.StartTimer()
				a := bd.ReadBegins(now)
				bd.RowsRead(now, a, board.Read{Terms: terms, Ready: ready})
				bd.Effects()
				for c := bd.Next(now, nil); c != nil; c = bd.Next(now, nil) {
					bd.Returned(now, c, board.Result{})
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
