package memory

import (
	"slices"
	"strconv"
	"time"
)

// claimPart is a part of the table that ClaimTopics goes through.
type claimPart struct {
	what  int64
	topic string
	room  int64
	ready int64
	due   position
}

// position is where a message comes among those that fell due.
type position struct {
	at time.Time
	id int64
}

func (p position) before(q *Queued) bool {
	return q.DueAt.After(p.at) || q.DueAt.Equal(p.at) && q.ID > p.id
}

func dueMark(at string, id int64) (position, error) {
	if at == "-infinity" {
		return position{id: id}, nil
	}
	from, err := moment(at)
	return position{from, id}, err
}

// limitOf is what ClaimTopics is told of a topic with a limit.
type limitOf struct {
	room int64
	here bool // in the part of such topics
}

// candidate is a row that a claim has come to.
type candidate struct {
	part, kind int
	key        queueKey
	topic      string
	id         int64
	dueAt      time.Time
}

// claimTopics is sqltext.ClaimTopics, and ClaimPages, of which here a page holds all.
func claimTopics(c *call) (result, error) {
	t := c.taking()
	t.topics = arg[[]string](c, 10)
	parts, err := c.claimParts()
	if err != nil {
		return result{}, err
	}
	limits := map[string]limitOf{}
	rooms, here := arg[[]int64](c, 12), arg[[]bool](c, 13)
	for i, topic := range arg[[]string](c, 11) {
		limits[topic] = limitOf{rooms[i], here[i]}
	}
	suspects, err := dueMark(arg[string](c, 16), c.number(17))
	if err != nil {
		return result{}, err
	}
	head := append(c.header(c.db.queueID), 0, 0)
	head[3] = strconv.FormatInt(c.db.now().UnixMicro(), 10)

	var found []candidate
	due := func(q *Queued) bool {
		return !q.DueAt.IsZero() && !q.DueAt.After(c.at) && q.State == processing && q.Owner == "" &&
			(q.ExpiresAt.IsZero() || q.ExpiresAt.After(c.at))
	}
	add := func(part, kind, limit int, which func(*Queued) bool, order func(a, b *Queued) int) (n int) {
		for _, q := range c.find(which, order) {
			if n == limit || len(found) == t.limit {
				break
			}
			if q := c.changeUnlocked(q.key(), which, func(*Queued) {}); q != nil {
				found = append(found, candidate{part, kind, q.key(), q.Topic, q.ID, q.DueAt})
				n++
			}
		}
		return n
	}
	add(0, 2, int(c.number(18)), func(q *Queued) bool {
		l, limited := limits[q.Topic]
		return due(q) && q.Crashes > 0 && suspects.before(q) && (t.topics == nil || slices.Contains(t.topics, q.Topic)) &&
			(!limited || l.room > 0)
	}, byDue)
	of := func(p claimPart, q *Queued) bool {
		l, limited := limits[q.Topic]
		switch p.what {
		case 0:
			return !limited && (t.topics == nil || slices.Contains(t.topics, q.Topic))
		case 1:
			return limited && l.here
		}
		return q.Topic == p.topic
	}
	dues := func(limit int) {
		for i, p := range parts {
			limit -= add(i+1, 1, min(limit, int(p.room)), func(q *Queued) bool {
				return due(q) && q.Crashes == 0 &&
					p.due.before(q) && of(p, q)
			}, byDue)
		}
	}
	dues(int(c.number(14)))
	for i, p := range parts {
		add(i+1, 0, int(p.room), func(q *Queued) bool {
			return q.ID > p.ready && q.DueAt.IsZero() && c.claimable(t, q) &&
				of(p, q)
		}, byID)
	}
	dues(int(c.number(15)))

	rows, taken := [][]any{head}, map[string]int64{}
	for _, f := range found {
		taken[f.topic]++
		if l, limited := limits[f.topic]; limited && taken[f.topic] > l.room {
			rows = append(rows, []any{
				f.id, "", "", f.topic, "", "over", []byte{}, "{}", nil, c.at, c.at, orNull(f.dueAt), nil, 0, "", f.part, f.kind,
			})
			continue
		}
		same := func(*Queued) bool { return true }
		if q := c.changeUnlocked(f.key, same, func(q *Queued) { q.Owner, q.LockedUntil = t.owner, t.until }); q != nil {
			rows = append(rows, append(q.columns(), f.part, f.kind))
		}
	}
	return result{rows: rows}, nil
}

func (c *call) claimParts() (parts []claimPart, err error) {
	topics, rooms, ready := arg[[]string](c, 5), arg[[]int64](c, 6), arg[[]int64](c, 7)
	at, ids := arg[[]string](c, 8), arg[[]int64](c, 9)
	for i, what := range arg[[]int64](c, 4) {
		p := claimPart{what: what, topic: topics[i], room: rooms[i], ready: ready[i]}
		if p.due, err = dueMark(at[i], ids[i]); err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	return parts, nil
}
