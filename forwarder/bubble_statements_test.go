package forwarder

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/testing/modeldb"
)

// bubbleStatements maps the texts of statements that the forwarder runs outside transactions to their models.
var bubbleStatements = func() map[string]namedStatement {
	all := map[string]namedStatement{}
	for name, list := range map[string]struct {
		do    statement
		texts []string
	}{
		"fetch": {(*bubbleServer).fetch, []string{
			sqltext.Fetch, sqltext.FetchApart, sqltext.FetchMore, sqltext.FetchMoreApart,
		}},
		"fetch range":       {(*bubbleServer).fetchRange, []string{sqltext.FetchRange, sqltext.FetchRangeMore}},
		"begin life":        {(*bubbleServer).beginLife, []string{sqltext.CreateIncarnation}},
		"writers":           {(*bubbleServer).writers, []string{sqltext.Writers}},
		"load blocked":      {(*bubbleServer).loadBlocked, []string{sqltext.LoadBlocked}},
		"sweep":             {(*bubbleServer).sweep, []string{sqltext.Sweep}},
		"pending":           {(*bubbleServer).pendingOf, []string{sqltext.Pending}},
		"settle published":  {(*bubbleServer).settlePublished, []string{sqltext.SettlePublished}},
		"settle span":       {(*bubbleServer).settleSpan, []string{sqltext.SettleSpan}},
		"settle unlocked":   {(*bubbleServer).settleUnlocked, []string{sqltext.SettleUnlocked}},
		"settle failed":     {(*bubbleServer).settleFailed, []string{sqltext.SettleFailed}},
		"heartbeat":         {(*bubbleServer).heartbeat, []string{sqltext.Heartbeat}},
		"members":           {(*bubbleServer).members, []string{sqltext.Members}},
		"lanes":             {(*bubbleServer).lanes, []string{sqltext.Lanes}},
		"take":              {(*bubbleServer).take, []string{sqltext.TakeLanes}},
		"retake":            {(*bubbleServer).retake, []string{sqltext.RetakeLanes}},
		"release":           {(*bubbleServer).release, []string{sqltext.ReleaseLanes}},
		"expire":            {(*bubbleServer).expire, []string{sqltext.ExpireForwarder}},
		"leave":             {(*bubbleServer).leave, []string{sqltext.LeaveForwarders}},
		"poll":              {(*bubbleServer).poll, []string{sqltext.PollOutbox}},
		"may write":         {answers([]any{true}), []string{sqltext.MayWrite}},
		"clean":             {(*bubbleServer).clean, []string{sqltext.CleanPublished}},
		"clean inbox":       {(*bubbleServer).cleanOthers, []string{sqltext.CleanInbox, sqltext.CleanInboxFailed}},
		"clean keys":        {(*bubbleServer).cleanOthers, []string{sqltext.CleanKeys}},
		"unread topics":     {answers(), []string{sqltext.UnreadTopics}},
		"operator's pauses": {answers(), []string{sqltext.OperatorPauses}},
		"pauses":            {(*bubbleServer).pauseTopics, []string{sqltext.PauseTopics}},
		"tell":              {(*bubbleServer).writeFacts, []string{sqltext.WriteFacts}},
		"lock holder":       {answers(), []string{sqltext.JoinLockHolder}},
	} {
		for _, text := range list.texts {
			all[sqltext.Tables{}.WithDefaults().Render(text)] = namedStatement{name, list.do}
		}
	}
	return all
}()

type namedStatement struct {
	name string
	do   statement
}

// answers is a statement that changes nothing and returns these rows.
func answers(rows ...[]any) statement {
	return func(*bubbleServer, []any) (bubbleAnswer, bool) { return bubbleAnswer{rows: rows}, false }
}

// clean finds nothing left to delete.
func (s *bubbleServer) clean(args []any) (bubbleAnswer, bool) {
	s.cleanings = append(s.cleanings, args[0].(int64))
	last := s.header().Seq
	return bubbleAnswer{rows: [][]any{{last, true, last, int64(0)}}}, false
}

func (s *bubbleServer) cleanOthers([]any) (bubbleAnswer, bool) {
	s.othersCleaned++
	return bubbleAnswer{}, false
}

func (s *bubbleServer) fetch(args []any) (bubbleAnswer, bool) { return s.reads(args, false), false }

func (s *bubbleServer) fetchRange(args []any) (bubbleAnswer, bool) { return s.reads(args, true), false }

func (s *bubbleServer) reads(args []any, single bool) (a bubbleAnswer) {
	q := modeldb.Request{
		Owner: args[1].(string), Xids: args[2].([]int64), Bounds: args[3].([]int64), Los: args[4].([]int64),
		SegmentBounds: args[5].([]int64), Epochs: args[6].([]int64), Marks: args[7].([]int64), Limits: args[8].([]int64),
		Rewound: args[9].([]int64), Stretch: args[11].(int64), Single: single,
	}
	if q.More = len(args) > 13; q.More {
		q.IDs, q.Dead, q.Due, q.Closed = args[13].([]int64), args[14].(bool), args[15].([]int64), args[16].([]string)
		q.From, q.Upto, q.Deferred = args[17].([]int64), args[18].([]int64), args[19].([]int64)
		q.All, q.Keys = uint64(args[20].(int64)), args[21].([]string)
		q.Blocked = args[22].([]string)
		if len(q.Due) > 0 {
			s.ofDue++
		}
	}
	found := s.db.Fetch(q)
	a.rows = append(a.rows, []any{
		int64(sqltext.FromHeader), found.Seq, found.Snapshot, nameOfLife(found.Life),
		fmt.Sprintf("%d %d 0 %d", found.NextXid, found.Rewind, int64(found.Owned)), nil, nil, time.Now(), 0,
	})
	add := func(source int, rows []modeldb.Row) {
		for _, r := range rows {
			metadata := []byte("{}")
			if r.Generation != "" {
				metadata = []byte(`{"outbox_generation":"` + r.Generation + `"}`)
			}
			at := source
			if source == sqltext.FromID && r.Dead {
				at = sqltext.FromIDDead
			}
			if r.Untried {
				at += sqltext.Untried
			}
			a.rows = append(a.rows, []any{
				int64(r.Lane) + int64(at), r.ID, r.UUID, r.Topic, r.Key, []byte("payload"), metadata, time.Now(), r.Attempts,
			})
		}
	}
	add(sqltext.FromReady, found.Ready)
	add(sqltext.FromID, found.ByID)
	add(sqltext.FromDue, found.Due)
	add(sqltext.FromDeferred, found.Deferred)
	return a
}

func (s *bubbleServer) poll(args []any) (a bubbleAnswer, _ bool) {
	number, _ := args[0].(int64)
	found, oldest, ready, due := s.header(), int64(0), false, (*float64)(nil)
	fmt.Sscan(strings.ReplaceAll(found.Snapshot, ":", " "), &oldest)
	for _, r := range s.db.Rows() {
		switch {
		case r.Published || r.Dead || found.Seq == number && !args[1].(bool):
		case r.Due == 0:
			ready = ready || r.ID > number || args[1].(bool)
		default:
			if in := float64(r.Due-s.db.Now) / 1e6; due == nil || in < *due {
				due = &in
			}
		}
	}
	a.rows = [][]any{{found.Seq, oldest, found.NextXid, false, ready, due}}
	return a, false
}

func (s *bubbleServer) beginLife([]any) (a bubbleAnswer, _ bool) {
	s.db.CreateIncarnation()
	return a, false
}

func (s *bubbleServer) writers([]any) (a bubbleAnswer, _ bool) { return listed(s.db.Writers()), false }

func listed(ids []int64) (a bubbleAnswer) {
	for _, id := range ids {
		a.rows = append(a.rows, []any{id})
	}
	return a
}

func (s *bubbleServer) loadBlocked(args []any) (a bubbleAnswer, _ bool) {
	a.rows = append(a.rows, []any{-1, 0, "", nameOfLife(s.db.Life()), 0.0, false})
	for i, lane := range args[0].([]int64) {
		for _, r := range s.db.Heads(int16(lane), args[1].([]int64)[i], args[2].(int64), args[4].(bool)) {
			wait := max(0, float64(r.Due-s.db.Now)/1e6)
			a.rows = append(a.rows, []any{lane, r.ID, r.Key, r.Topic, wait, r.Dead})
		}
	}
	return a, false
}

func (s *bubbleServer) sweep(args []any) (a bubbleAnswer, _ bool) {
	for i, lane := range args[0].([]int64) {
		cursor, upto := args[1].([]int64)[i], args[2].([]int64)[i]
		for _, r := range s.db.Sweep(int16(lane), cursor, upto, args[3].(int64)) {
			a.rows = append(a.rows, []any{lane, r.ID, r.Key, r.Topic})
		}
	}
	return a, false
}

func (s *bubbleServer) pendingOf(args []any) (bubbleAnswer, bool) {
	return listed(s.db.Pending(args[0].([]int64))), false
}

func settledOf(args []any) (list []modeldb.Settled) {
	for i, id := range args[0].([]int64) {
		list = append(list, modeldb.Settled{ID: id, Identity: args[1].([]string)[i]})
	}
	return list
}

func nameOfLife(life int) string {
	if life == 0 {
		return "" // it has not started
	}
	return strconv.Itoa(life)
}

func lifeNamed(name any) int {
	n, _ := strconv.Atoi(name.(string))
	return n
}

func (s *bubbleServer) settlePublished(args []any) (a bubbleAnswer, blocked bool) {
	return a, s.db.SettlePublished(settledOf(args), lifeNamed(args[2]), args[3].(int64), false)
}

func (s *bubbleServer) settleSpan(args []any) (a bubbleAnswer, blocked bool) {
	a.touched, blocked = s.db.SettleSpan(args[0].(int64), args[1].(int64), lifeNamed(args[2]), args[3].(int64),
		args[4].([]int64), false)
	return a, blocked
}

func (s *bubbleServer) settleUnlocked(args []any) (bubbleAnswer, bool) {
	return listed(s.db.SettleUnlocked(settledOf(args), false)), false
}

func (s *bubbleServer) settleFailed(args []any) (a bubbleAnswer, _ bool) {
	ids, list := args[2].([]int64), []modeldb.Failed{}
	for i, id := range ids {
		list = append(list, modeldb.Failed{
			ID: id, Identity: args[3].([]string)[i], Lane: int16(args[4].([]int64)[i]), Epoch: args[5].([]int64)[i],
			Attempts: int(args[6].([]int64)[i]), Delay: int64(args[7].([]float64)[i] * 1e6),
			Permanent: args[9].([]float64)[i] >= 0,
		})
	}
	for i, outcome := range s.db.SettleFailed(args[1].(string), list, math.MaxInt) {
		if outcome != "" {
			a.rows = append(a.rows, []any{i + 1, outcome})
		}
	}
	return a, false
}

func (s *bubbleServer) heartbeat(args []any) (a bubbleAnswer, _ bool) {
	if id := args[0].(string); s.db.Heartbeat(id, true, args[2].(bool)) {
		s.leases[id] = time.Now().Add(seconds(args[1].(float64)))
		a.touched = 1
	}
	return a, false
}

func (s *bubbleServer) members([]any) (a bubbleAnswer, _ bool) {
	ids, has := s.db.Members()
	for i, id := range ids {
		until := s.leases[id]
		a.rows = append(a.rows, []any{id, has[i], time.Until(until).Seconds(), until.UnixMicro(), leaseOfBubbles.Seconds()})
	}
	return a, false
}

func (s *bubbleServer) expire(args []any) (a bubbleAnswer, _ bool) {
	if id := args[0].(string); s.leases[id].UnixMicro() == args[1].(int64) {
		s.leases[id] = time.Now()
		s.clock()
	}
	return a, false
}

func (s *bubbleServer) leave(args []any) (a bubbleAnswer, _ bool) {
	s.db.Leave(args[0].(string))
	delete(s.leases, args[0].(string))
	return a, false
}

func (s *bubbleServer) pauseTopics(args []any) (a bubbleAnswer, _ bool) {
	s.paused = args[1].([]string)
	return a, false
}

func (s *bubbleServer) writeFacts(args []any) (a bubbleAnswer, _ bool) {
	s.facts = args[1].(string)
	return a, false
}

func (s *bubbleServer) lanes([]any) (a bubbleAnswer, _ bool) {
	lanes, alive := s.db.Lanes()
	for n, l := range lanes {
		a.rows = append(a.rows, []any{n, l.Epoch, l.Owner, alive[n]})
	}
	return a, false
}

func termsOf(args []any) (list []modeldb.Term) {
	for i, lane := range args[2].([]int64) {
		t := modeldb.Term{Lane: int16(lane), Epoch: args[3].([]int64)[i]}
		if len(args) > 4 {
			t.Had = args[4].([]int64)[i]
		}
		list = append(list, t)
	}
	return list
}

func (s *bubbleServer) take(args []any) (bubbleAnswer, bool) {
	return taken(s.db.Take(args[1].(string), termsOf(args))), false
}

func (s *bubbleServer) retake(args []any) (bubbleAnswer, bool) {
	return taken(s.db.Retake(args[1].(string), termsOf(args))), false
}

func taken(terms []modeldb.Term) (a bubbleAnswer) {
	for _, t := range terms {
		a.rows = append(a.rows, []any{t.Lane, t.Epoch})
	}
	return a
}

func (s *bubbleServer) release(args []any) (a bubbleAnswer, _ bool) {
	s.db.GiveBack(args[1].(string), termsOf(args))
	return a, false
}

// bubbleRows are the rows of a response.
type bubbleRows struct {
	list [][]any
	row  []any
}

var _ drive.Rows = (*bubbleRows)(nil)

func (r *bubbleRows) Next() bool {
	if len(r.list) == 0 {
		return false
	}
	r.row, r.list = r.list[0], r.list[1:]
	return true
}

func (r *bubbleRows) Err() error   { return nil }
func (r *bubbleRows) Close() error { return nil }

func (r *bubbleRows) Scan(dest ...any) error {
	if len(dest) != len(r.row) {
		return fmt.Errorf("%d columns are scanned into %d values", len(r.row), len(dest))
	}
	for i, d := range dest {
		to := reflect.ValueOf(d).Elem()
		if r.row[i] == nil {
			to.SetZero()
			continue
		}
		to.Set(reflect.ValueOf(r.row[i]).Convert(to.Type()))
	}
	return nil
}

// oneLine returns the beginning of a statement.
func oneLine(query string) string {
	query = strings.Join(strings.Fields(query), " ")
	return query[:min(len(query), 80)]
}
