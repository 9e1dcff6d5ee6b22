package ui

import (
	"fmt"
	"slices"
	"testing"

	"github.com/millrace-go/watermill-outbox/admin"
)

// TestPartitionsThatMatterAreShown: of many partitions the page shows the current one, the default, and due ones.
func TestPartitionsThatMatterAreShown(t *testing.T) {
	var all []admin.Partition
	add := func(state string, n int) {
		for range n {
			all = append(all, admin.Partition{Name: fmt.Sprint(len(all)), State: state})
		}
	}
	add("due", 2)
	add("retained", 30)
	add("current", 1)
	add("ahead", 30)
	all = append(all, admin.Partition{Name: "default", State: "filled", Default: true})
	var names []string
	for _, l := range partitionsShown(all) {
		names = append(names, l.Name)
	}
	if len(names) != mostPartitions || !slices.Equal(names[:3], []string{"0", "1", "32"}) || names[15] != "default" {
		t.Errorf("shown: %v", names)
	}
	if shown := partitionsShown(all[:5]); len(shown) != 5 {
		t.Errorf("of five: %v", shown)
	}
	all = all[:0]
	add("due", 40)
	if shown := partitionsShown(all); len(shown) != mostPartitions || shown[0].Name != "24" {
		t.Errorf("of the due ones: %v", shown)
	}
}

// TestTopicsThatNeedAttentionAreShown: of too many topics the page lists the requested one and those in the worst
// state.
func TestTopicsThatNeedAttentionAreShown(t *testing.T) {
	var all []admin.TopicStats
	for i := range mostTopics + 20 {
		all = append(all, admin.TopicStats{Topic: fmt.Sprint(i)})
	}
	all[117].Paused = true
	all[118].Dead.N = 1
	all[119].Ready.N = 1
	var names []string
	table := tableOf(admin.Outbox, all, "116")
	for _, row := range table.Rows {
		names = append(names, row.Topic)
	}
	if len(names) != mostTopics || !slices.Equal(names[:5], []string{"116", "117", "118", "119", "0"}) ||
		table.More != 20 {
		t.Errorf("shown: %v, and %d more", names, table.More)
	}
	if table := tableOf(admin.Outbox, all[:mostTopics], ""); len(table.Rows) != mostTopics || table.More != 0 ||
		table.Rows[0].Topic != "0" {
		t.Errorf("of %d: %d, and %d more", mostTopics, len(table.Rows), table.More)
	}
}
