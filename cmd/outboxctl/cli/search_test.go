package cli

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/millrace-go/watermill-outbox/admin"
)

// TestSearch reads pages until there are enough messages, and prints those found when it is interrupted.
func TestSearch(t *testing.T) {
	for name, c := range map[string]struct {
		limit int
		end   error // error of the third page
		says  []string
		fails bool
	}{
		"enough":      {limit: 2, says: []string{"m1 m2", "go on at p2"}},
		"to the end":  {limit: 9, says: []string{"m1 m2 m3"}},
		"interrupted": {limit: 9, end: context.Canceled, says: []string{"m1 m2", "go on at p2"}, fails: true},
		"found":       {limit: 9, end: errFound, says: []string{"m1 m2 m3"}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var out bytes.Buffer
			a := &app{world: World{}, err: &out}
			next := func(_ context.Context, p admin.Page) (*admin.List, error) {
				pages := map[string]*admin.List{
					"": {Messages: []admin.Message{{ID: "m1"}}, Next: "p1"}, "p1": {Messages: []admin.Message{{ID: "m2"}}, Next: "p2"},
					"p2": {Messages: []admin.Message{{ID: "m3"}}},
				}
				if p.After == "p2" && c.end != nil {
					if c.end == context.Canceled {
						cancel()
						return nil, c.end
					}
					return pages[p.After], c.end
				}
				return pages[p.After], nil
			}
			err := a.search(ctx, admin.Page{Limit: c.limit}, next, func(l *admin.List) error {
				ids := make([]string, len(l.Messages))
				for i, m := range l.Messages {
					ids[i] = m.ID
				}
				out.WriteString(strings.Join(ids, " ") + "\n")
				if l.Next != "" {
					out.WriteString("go on at " + l.Next + "\n")
				}
				return nil
			})
			if (err != nil) != c.fails {
				t.Error(err)
			}
			for _, text := range c.says {
				if !strings.Contains(out.String(), text+"\n") {
					t.Errorf("there is no %q in %q", text, out.String())
				}
			}
		})
	}
}
