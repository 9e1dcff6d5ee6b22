package ui

import (
	"fmt"
	"slices"
	"testing"

	"github.com/millrace-go/watermill-outbox/admin"
)

// TestLeavesThatMatterAreShown: of many partitions the page shows the current one, the default and those that are due.
func TestLeavesThatMatterAreShown(t *testing.T) {
	var all []admin.LeafStats
	add := func(state admin.LeafState, n int) {
		for range n {
			all = append(all, admin.LeafStats{Name: fmt.Sprint(len(all)), State: state})
		}
	}
	add("due", 2)
	add("retained", 30)
	add("current", 1)
	add("ahead", 30)
	all = append(all, admin.LeafStats{Name: "default", State: "filled", Default: true})
	var names []string
	for _, l := range leavesShown(all) {
		names = append(names, l.Name)
	}
	if len(names) != mostLeaves || !slices.Equal(names[:3], []string{"0", "1", "32"}) || names[15] != "default" {
		t.Errorf("shown: %v", names)
	}
	if shown := leavesShown(all[:5]); len(shown) != 5 {
		t.Errorf("of five: %v", shown)
	}
	all = all[:0]
	add("due", 40)
	if shown := leavesShown(all); len(shown) != mostLeaves || shown[0].Name != "24" {
		t.Errorf("of those that are due: %v", shown)
	}
}
