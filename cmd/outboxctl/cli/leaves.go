package cli

import (
	"fmt"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/internal/words"
)

// leafGrid shows the partitions of an outbox.
func leafGrid(leaves []admin.LeafStats) grid {
	g := grid{title: "Partitions of the outbox", heads: []string{"PARTITION", "STATE", "FROM", "TO", "SIZE", "OLDEST"}}
	for _, l := range leaves {
		from, to, oldest := bound(l.From), bound(l.To), ""
		if l.Default {
			from, to = "no leaf", ""
		}
		if l.Oldest > 0 {
			oldest = words.Age(l.Oldest)
		}
		g.rows = append(g.rows, []cell{
			{text: l.Name}, {text: string(l.State)}, {text: from}, {text: to}, {text: text.Size(l.Bytes)}, {text: oldest},
		})
	}
	return g
}

// bound writes an id; 0 = none.
func bound(id int64) string {
	if id == 0 {
		return ""
	}
	return words.Number(id)
}

// leavesAhead returns an error if none is ahead of the ids after a roll. It says why, if the roll does.
func leavesAhead(r admin.RollResult) error {
	if r.Ahead > 0 {
		return nil
	}
	why := "none was made"
	if r.NotMade != "" {
		why += ": " + r.NotMade
	}
	return fmt.Errorf("no leaf is ahead of the ids: %s: run outboxctl doctor, which says what to do", why)
}
