package fleet_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/millrace-go/watermill-outbox/fleet"
)

// BenchmarkTargets measures the cost of a target that a process has not connected to, with its own DSN and with a
// shared one.
func BenchmarkTargets(b *testing.B) {
	for name, dsn := range map[string]string{"own DSN": "db%05d", "shared DSN": "db"} {
		b.Run(name, func(b *testing.B) {
			const n = 10000
			var list []fleet.Target
			for i := range n {
				database := dsn
				if dsn != "db" {
					database = fmt.Sprintf(dsn, i)
				}
				list = append(list, fleet.Target{
					Key: fmt.Sprintf("tenant-%05d", i), DSN: "postgres://me:secret@localhost/" + database,
				})
			}
			for b.Loop() {
				before, goroutines := heap(), runtime.NumGoroutine()
				f := run(b, fleet.Static(list...), fleet.Config{}, nil)
				b.ReportMetric(float64(heap()-before)/n, "B/target")
				b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/n, "goroutines/target")
				f.Close()
			}
		})
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}
