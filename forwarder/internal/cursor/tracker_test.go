package cursor

import (
	"reflect"
	"testing"
)

func TestParseSnapshot(t *testing.T) {
	got, err := ParseSnapshot("10:20:10,15", 22, 7)
	if want := (Snapshot{Xmax: 20, InProgress: []int64{10, 15}, NextXid: 22, Seq: 7}); err != nil ||
		!reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, %v, want %+v", got, err, want)
	}
	if got, err := ParseSnapshot("10:10:", 10, 0); err != nil || got.InProgress != nil {
		t.Fatalf("got %+v, %v for an empty list", got, err)
	}
	for _, bad := range []string{"", "10:20", "10:x:", "10:20:15,x"} {
		if _, err := ParseSnapshot(bad, 0, 0); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestTrackerBoundsOfTransactions(t *testing.T) {
	var tr tracker
	// Nothing is known about transactions that the first read finds in progress, or about ids 20 and 21, which have been
	// assigned.
	tr.observe(Snapshot{Xmax: 20, InProgress: []int64{15}, NextXid: 22, Seq: 100})
	wantArgs(t, &tr, []int64{15}, []int64{0}, []int64{20}, []int64{0})

	// 20 is still in progress and keeps its bound, like 15. 23 began after the first read had seen id 100.
	tr.observe(Snapshot{Xmax: 24, InProgress: []int64{15, 20, 23}, NextXid: 26, Seq: 200})
	wantArgs(t, &tr, []int64{15, 20, 23}, []int64{0, 0, 100}, []int64{24}, []int64{100})

	// A segment ends at the snapshot's xmax, and a new one begins there.
	tr.observe(Snapshot{Xmax: 25, InProgress: []int64{15}, NextXid: 28, Seq: 300})
	wantArgs(t, &tr, []int64{15}, []int64{0}, []int64{25, 26}, []int64{100, 200})
}

func TestBoundsMoveOnlyForOpenTransactions(t *testing.T) {
	var tr tracker
	tr.observe(Snapshot{Xmax: 20, InProgress: []int64{10, 11, 12}, NextXid: 20, Seq: 5000})
	if tr.lag() != 5000 {
		t.Fatalf("lag %d", tr.lag())
	}
	tr.writersSeen(map[uint32]bool{11: true})
	// The next read still uses the old bounds: 10 may have written and committed since the locks were read.
	wantArgs(t, &tr, []int64{10, 11, 12}, []int64{0, 0, 0}, []int64{}, []int64{})
	tr.observe(Snapshot{Xmax: 20, InProgress: []int64{11, 12}, NextXid: 20, Seq: 6000})
	wantArgs(t, &tr, []int64{11, 12}, []int64{0, 5000}, []int64{}, []int64{})
}

func TestTrackerMergesSegmentsDownwards(t *testing.T) {
	var segments []segment
	for i := range int64(100) {
		segments = append(segments, segment{i * 10, i*10 + 10, 1000 + i})
	}
	merged := mergeSegments(segments)
	last := merged[len(merged)-1]
	if len(merged) != maxSegments || last.lo != 630 || last.hi != 1000 || last.bound != 1063 {
		t.Fatalf("%d segments, the last %+v", len(merged), last)
	}
}

func wantArgs(t *testing.T, tr *tracker, xids, bounds, los, segmentBounds []int64) {
	t.Helper()
	a, b, c, d := tr.args()
	if got, want := [][]int64{a, b, c, d}, [][]int64{xids, bounds, los, segmentBounds}; !reflect.DeepEqual(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}
