package integration_test

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/testing/modeldb"
)

const modelScope = "s"

var modelForwarders = []string{
	"00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002",
	"00000000-0000-0000-0000-000000000003",
}

func (w *twin) chance(percent int) bool { return w.rng.IntN(100) < percent }

func (w *twin) forwarder() string { return modelForwarders[w.rng.IntN(len(modelForwarders))] }

// act makes one random change on both.
func (w *twin) act(ctx context.Context) error {
	switch p := w.rng.IntN(1000); {
	case p < 420:
		return w.write(ctx, &w.writers[w.rng.IntN(len(w.writers))])
	case p < 560:
		return w.fetch(ctx)
	case p < 620:
		return w.settlePublished(ctx)
	case p < 650:
		return w.settleSpan(ctx)
	case p < 690:
		return w.settleUnlocked(ctx)
	case p < 770:
		return w.settleFailed(ctx)
	case p < 900:
		return w.lease(ctx)
	case p < 950:
		return w.read(ctx)
	case p < 970:
		return w.requeue(ctx)
	case p < 975:
		return w.truncate(ctx)
	case p < 990:
		w.model.CreateIncarnation()
		_, err := w.exec(ctx, sqltext.CreateIncarnation)
		return err
	case p < 996:
		return w.flush(ctx)
	default:
		return w.crash(ctx)
	}
}

// flush commits a transaction that waits for the disk.
func (w *twin) flush(ctx context.Context) error {
	tx := w.model.Begin()
	tx.Write()
	tx.End(true)
	w.model.Durable()
	return pgx.BeginFunc(ctx, w.conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "set local synchronous_commit = on; insert into elsewhere values (1)")
		return err
	})
}

// write makes one step of a transaction.
func (w *twin) write(ctx context.Context, o *writer) error {
	do := func(what string, statement string, args ...any) error {
		w.did[what]++
		w.said = append(w.said, fmt.Sprintf("writer %p: %s %v", o, what, args))
		_, err := o.conn.Exec(ctx, sqltext.Tables{}.Render(statement), args...)
		return err
	}
	if o.tx == nil {
		o.tx = w.model.Begin()
		return do("begin", "begin")
	}
	switch p := w.rng.IntN(100); {
	case p < 10:
		o.tx.Write()
		return do("write elsewhere", "insert into elsewhere values (1)")
	case p < 42:
		return w.insert(o, do)
	case p < 55:
		o.tx.Savepoint()
		if err := do("savepoint", "savepoint s"); err != nil || w.chance(40) {
			return err
		}
		o.tx.Write() // so that most savepoints have transaction ids
		return do("write elsewhere", "insert into elsewhere values (1)")
	case p < 64 && o.tx.Depth() > 0:
		o.tx.Release()
		return do("release savepoint", "release s")
	case p < 73 && o.tx.Depth() > 0:
		o.tx.RollbackTo()
		if err := do("roll back to savepoint", "rollback to s"); err != nil {
			return err
		}
		return w.fetch(ctx) // completed transactions are visible until others end
	case p < 78:
		if rows := w.model.Rows(); len(rows) > 0 {
			r := rows[w.rng.IntN(len(rows))]
			if _, blocked := o.tx.Lock(r.ID); !blocked {
				return do("lock", "select from outbox where id = $1 for update", r.ID)
			}
		}
		return nil
	case p < 95:
		o.tx.End(true)
		o.tx = nil
		if err := do("commit", "commit"); err != nil || w.chance(50) {
			return err
		}
		return w.fetch(ctx)
	default:
		o.tx.End(false)
		o.tx = nil
		return do("roll back", "rollback")
	}
}

// insert writes one or two messages.
func (w *twin) insert(o *writer, do func(what, statement string, args ...any) error) error {
	var uuids, topics, keys, metadata []string
	var payloads [][]byte
	var delays []float64
	for range 1 + w.rng.IntN(2) {
		w.uuids++
		r := modeldb.Row{UUID: fmt.Sprint("m", w.uuids%modelMessages), Topic: "t"}
		if w.chance(70) {
			r.Key = fmt.Sprint("k", w.rng.IntN(modelKeys))
		}
		if r.Lane = w.laneOf[r.UUID]; r.Key != "" {
			r.Lane = w.laneOf[r.Key]
		}
		delay := -1.0
		if w.chance(10) {
			r.Due = w.time()
			delay = float64(r.Due)
		}
		o.tx.Insert(r)
		uuids, topics, keys = append(uuids, r.UUID), append(topics, r.Topic), append(keys, r.Key)
		metadata, payloads, delays = append(metadata, "{}"), append(payloads, []byte("p")), append(delays, delay)
	}
	return do("insert", sqltext.InsertMessages, uuids, topics, keys, payloads, metadata, nil, delays)
}

// time returns a time in the future that no other row has.
func (w *twin) time() int64 {
	w.times++
	return w.times * 10000
}

type modelRead struct {
	Seq                   int64
	Snapshot              string
	NextXid, Rewind       int64
	Owned                 uint64
	Life                  int
	Ready, ByID, DeadByID []string
	Due, Deferred         []string
}

func (w *twin) fetch(ctx context.Context) error {
	q := w.request()
	a := w.model.Fetch(q)
	model := modelRead{
		Seq: a.Seq, Snapshot: a.Snapshot, NextXid: a.NextXid, Rewind: a.Rewind, Owned: a.Owned, Life: a.Life,
	}
	add := func(to *[]string, r modeldb.Row) {
		*to = append(*to, short(r.Lane, r.ID, r.UUID, r.Attempts, r.Untried))
	}
	for _, r := range a.Ready {
		add(&model.Ready, r)
	}
	for _, r := range a.ByID {
		if r.Dead {
			add(&model.DeadByID, r)
		} else {
			add(&model.ByID, r)
		}
	}
	for _, r := range a.Due {
		add(&model.Due, r)
	}
	for _, r := range a.Deferred {
		add(&model.Deferred, r)
	}
	server, err := w.fetched(ctx, q)
	if err != nil {
		return err
	}
	for _, rows := range []*[]string{&model.Ready, &model.ByID, &model.DeadByID, &model.Due, &server.Ready, &server.ByID,
		&server.DeadByID, &server.Due, &model.Deferred, &server.Deferred} {
		slices.Sort(*rows)
	}
	return w.same("fetch", model, server)
}

func short(lane int16, id int64, uuid string, attempts int, untried bool) string {
	return fmt.Sprintf("%d/%d/%s/%d/%t", lane, id, uuid, attempts, untried)
}

// request requests the lanes of a forwarder, most of them with the right epochs.
func (w *twin) request() modeldb.Request {
	q := modeldb.Request{
		Owner: w.forwarder(), Stretch: 1 + w.rng.Int64N(60), Single: w.chance(30), More: w.chance(50), Dead: w.chance(50),
		Xids: []int64{}, Bounds: []int64{}, Los: []int64{}, SegmentBounds: []int64{}, IDs: []int64{}, Due: []int64{},
		Closed: []string{}, Blocked: []string{},
	}
	header := w.model.Fetch(modeldb.Request{
		Epochs: make([]int64, modeldb.Lanes), Marks: make([]int64, modeldb.Lanes), Limits: make([]int64, modeldb.Lanes),
		Rewound: make([]int64, modeldb.Lanes),
	})
	bound := func() int64 { return w.rng.Int64N(header.Seq + 1) }
	for range w.rng.IntN(4) {
		q.Xids, q.Bounds = append(q.Xids, header.NextXid-w.rng.Int64N(25)), append(q.Bounds, bound())
	}
	for range w.rng.IntN(2) {
		q.Los, q.SegmentBounds = append(q.Los, header.NextXid-w.rng.Int64N(10)), append(q.SegmentBounds, bound())
	}
	lanes, _ := w.model.Lanes()
	mark := bound()
	for n := range modeldb.Lanes {
		epoch := int64(0)
		if lanes != nil && lanes[n].Owner == q.Owner && w.chance(90) {
			epoch = lanes[n].Epoch
		}
		if lanes != nil && w.chance(3) {
			epoch = 1 + lanes[n].Epoch
		}
		if !q.Single {
			mark = bound()
		}
		q.Epochs, q.Marks = append(q.Epochs, epoch), append(q.Marks, mark)
		q.Limits, q.Rewound = append(q.Limits, 1+w.rng.Int64N(4)), append(q.Rewound, w.rng.Int64N(3))
	}
	for range w.rng.IntN(6) {
		q.IDs = append(q.IDs, 1+bound())
	}
	q.IDs = sorted(q.IDs)
	if w.chance(50) {
		for range modeldb.Lanes {
			q.Due = append(q.Due, 1+w.rng.Int64N(3))
		}
	}
	if w.chance(10) {
		q.Closed = []string{"t"}
	}
	if w.chance(30) {
		q.Blocked = []string{"", "a", "b", "k1"}[:w.rng.IntN(5)]
	}
	q.From, q.Upto, q.Deferred, q.Keys = []int64{}, []int64{}, []int64{}, []string{}
	if w.chance(60) {
		for range modeldb.Lanes {
			q.From, q.Upto = append(q.From, bound()), append(q.Upto, bound()+w.rng.Int64N(20))
			q.Deferred = append(q.Deferred, w.rng.Int64N(4))
		}
		q.All, q.Keys = w.rng.Uint64()&w.rng.Uint64(), []string{"", "a", "b", "k1"}[:w.rng.IntN(5)]
	}
	return q
}

// fetched runs the request on the server, with one of the statements for reading.
func (w *twin) fetched(ctx context.Context, q modeldb.Request) (a modelRead, err error) {
	query, more := sqltext.Fetch, sqltext.FetchMore
	switch {
	case q.Single:
		query, more = sqltext.FetchRange, sqltext.FetchRangeMore
	case w.chance(50):
		query, more = sqltext.FetchApart, sqltext.FetchMoreApart
	}
	args := []any{
		modelScope, q.Owner, q.Xids, q.Bounds, q.Los, q.SegmentBounds, q.Epochs, q.Marks, q.Limits, q.Rewound, []string{},
		q.Stretch, int64(1000),
	}
	if q.More {
		query, args = more, append(args, q.IDs, q.Dead, q.Due, q.Closed, q.From, q.Upto, q.Deferred, int64(q.All), q.Keys,
			q.Blocked)
	}
	_, err = list(w, ctx, query, func(row pgx.CollectableRow) (_ int, err error) {
		var lane int16
		var id int64
		var uuid, topic, key string
		var attempts int
		if err := row.Scan(&lane, &id, &uuid, &topic, &key, nil, nil, nil, &attempts); err != nil {
			return 0, err
		}
		untried := lane&sqltext.Untried != 0
		lane &^= sqltext.WithoutPayload | sqltext.Untried
		source, text := lane&^(modeldb.Lanes-1), short(lane&(modeldb.Lanes-1), id, uuid, attempts, untried)
		switch source {
		case sqltext.FromHeader:
			a.Seq, a.Snapshot, a.Life = id, uuid, w.life(topic)
			var owned int64
			var standby int
			_, err = fmt.Sscan(key, &a.NextXid, &a.Rewind, &standby, &owned)
			a.Owned = uint64(owned)
		case sqltext.FromReady:
			a.Ready = append(a.Ready, text)
		case sqltext.FromID:
			a.ByID = append(a.ByID, text)
		case sqltext.FromIDDead:
			a.DeadByID = append(a.DeadByID, text)
		case sqltext.FromDue:
			a.Due = append(a.Due, text)
		case sqltext.FromDeferred:
			a.Deferred = append(a.Deferred, text)
		}
		return 0, err
	}, args...)
	return a, err
}

// life returns the model's name for the server's incarnation: equal names must mean the same incarnation, different
// names different ones.
func (w *twin) life(name string) int {
	if name == "" {
		return 0
	}
	for _, l := range w.lives {
		if l.name == name {
			return l.model
		}
	}
	now := w.model.Life()
	for _, l := range w.lives {
		if l.model == now {
			return -1 // the server has begun a new incarnation, but the model has not
		}
	}
	w.lives = append(w.lives, knownLife{name, now})
	return now
}

// someLife returns an incarnation that was read, usually the latest.
func (w *twin) someLife() knownLife {
	switch n := len(w.lives); {
	case n == 0 || w.chance(15):
		return knownLife{}
	case w.chance(80):
		return w.lives[n-1]
	default:
		return w.lives[w.rng.IntN(n)]
	}
}

// results returns existing messages, some of them with a wrong uuid.
func (w *twin) results() (results []modeldb.Settled, ids []int64, identities []string) {
	for _, r := range pick(w.rng, w.model.Rows(), 8) {
		identity := r.UUID
		switch {
		case w.chance(10):
			identity = "other"
		case r.Generation != "" && w.chance(70):
			identity += "/" + r.Generation
		}
		results = append(results, modeldb.Settled{ID: r.ID, Identity: identity})
		ids, identities = append(ids, r.ID), append(identities, identity)
	}
	return results, ids, identities
}

// someSeq returns the sequence's position at some read; it may have gone back since.
func (w *twin) someSeq() int64 {
	if w.chance(10) {
		return 1 << 40
	}
	return 0
}

func (w *twin) settlePublished(ctx context.Context) error {
	results, ids, identities := w.results()
	life, seq, remove := w.someLife(), w.someSeq(), w.chance(20)
	if len(ids) == 0 || w.model.SettlePublished(results, life.model, seq, remove) {
		return nil
	}
	query := sqltext.SettlePublished
	if remove {
		query = sqltext.SettlePublishedDelete
	}
	if _, err := w.exec(ctx, query, ids, identities, life.name, seq); err != nil {
		return err
	}
	w.said = append(w.said, fmt.Sprintf("settle published %v of life %d, seq %d, delete %v", results, life.model, seq,
		remove))
	w.did["settle published"]++
	return nil
}

func (w *twin) settleSpan(ctx context.Context) error {
	rows := w.model.Rows()
	if len(rows) == 0 {
		return nil
	}
	lo := rows[w.rng.IntN(len(rows))].ID
	hi := lo + w.rng.Int64N(6)
	out := pick(w.rng, []int64{lo, lo + 1, lo + 2}, 30)
	life, seq, remove := w.someLife(), w.someSeq(), w.chance(20)
	n, blocked := w.model.SettleSpan(lo, hi, life.model, seq, out, remove)
	if blocked {
		return nil
	}
	query := sqltext.SettleSpan
	if remove {
		query = sqltext.SettleSpanDelete
	}
	touched, err := w.exec(ctx, query, lo, hi, life.name, seq, append([]int64{}, out...))
	if err != nil {
		return err
	}
	return w.same("settle span", n, touched)
}

func (w *twin) settleUnlocked(ctx context.Context) error {
	results, ids, identities := w.results()
	if len(ids) == 0 {
		return nil
	}
	remove := w.chance(20)
	query := sqltext.SettleUnlocked
	if remove {
		query = sqltext.SettleUnlockedDelete
	}
	locked, err := list(w, ctx, query, pgx.RowTo[int64], ids, identities)
	if err != nil {
		return err
	}
	return w.same("settle unlocked", sorted(w.model.SettleUnlocked(results, remove)), sorted(locked))
}

func (w *twin) settleFailed(ctx context.Context) error {
	_, ids, identities := w.results()
	if len(ids) == 0 {
		return nil
	}
	const most = 3
	owner, failed := w.forwarder(), []modeldb.Failed{}
	var lanes, epochs, attempts []int64
	var delays []float64
	var errs []string
	var fatalAges []float64
	states, _ := w.model.Lanes()
	for i, r := range w.model.Rows() {
		at := slices.Index(ids, r.ID)
		if at < 0 {
			continue
		}
		f := modeldb.Failed{
			ID: r.ID, Identity: identities[at], Lane: r.Lane, Attempts: 1 + w.rng.IntN(most), Delay: w.time(),
			Permanent: w.chance(10), Epoch: 1,
		}
		if states != nil {
			f.Epoch = states[r.Lane].Epoch
			if i == 0 && states[r.Lane].Owner != "" {
				owner = states[r.Lane].Owner
			}
		}
		if w.chance(15) {
			f.Epoch--
		}
		if w.chance(50) {
			f.Delay = -f.Delay
		}
		failed = append(failed, f)
		lanes, epochs, attempts = append(lanes, int64(f.Lane)), append(epochs, f.Epoch), append(attempts, int64(f.Attempts))
		delays, errs = append(delays, float64(f.Delay)), append(errs, "e")
		if fatalAges = append(fatalAges, -1); f.Permanent || f.Attempts >= most {
			fatalAges[len(fatalAges)-1] = 0
		}
	}
	server := make([]string, len(ids))
	_, err := list(w, ctx, sqltext.SettleFailed, func(row pgx.CollectableRow) (_ int, err error) {
		var n int
		var outcome string
		if err = row.Scan(&n, &outcome); err == nil {
			server[n-1] = outcome
		}
		return 0, err
	}, modelScope, owner, ids, identities, lanes, epochs, attempts, delays, errs, fatalAges)
	if err != nil {
		return err
	}
	return w.same("settle failed", w.model.SettleFailed(owner, failed, most), server)
}

// lease makes a step of a rebalancer.
func (w *twin) lease(ctx context.Context) error {
	id := w.forwarder()
	switch p := w.rng.IntN(100); {
	case p < 15:
		return w.register(ctx, id)
	case p < 35:
		seconds, leaving := 1e6, w.chance(10)
		if w.chance(15) {
			seconds = -1e6
		}
		n, err := w.exec(ctx, sqltext.Heartbeat, id, seconds, leaving, true)
		if err != nil {
			return err
		}
		return w.same("heartbeat", w.model.Heartbeat(id, seconds > 0, leaving), n > 0)
	case p < 40:
		w.model.Leave(id)
		_, err := w.exec(ctx, sqltext.LeaveForwarders, id)
		return err
	case p < 50:
		return w.members(ctx)
	}
	lanes, _ := w.model.Lanes()
	if lanes == nil {
		return nil
	}
	if w.had[id] == nil {
		w.had[id] = make([]int64, modeldb.Lanes)
	}
	var terms []modeldb.Term
	var numbers, epochs, had []int64
	for n, l := range lanes {
		if !w.chance(25) {
			continue
		}
		t := modeldb.Term{Lane: int16(n), Epoch: l.Epoch, Had: w.had[id][n]}
		if w.chance(10) {
			t.Epoch--
		}
		terms = append(terms, t)
		numbers, epochs, had = append(numbers, int64(n)), append(epochs, t.Epoch), append(had, t.Had)
	}
	switch p := w.rng.IntN(100); {
	case p < 60:
		return w.takes(ctx, "take", sqltext.TakeLanes, w.model.Take(id, terms), id, numbers, epochs, had)
	case p < 80:
		return w.takes(ctx, "retake", sqltext.RetakeLanes, w.model.Retake(id, terms), id, numbers, epochs, had)
	default:
		w.model.GiveBack(id, terms)
		_, err := w.exec(ctx, sqltext.ReleaseLanes, modelScope, id, numbers, epochs)
		return err
	}
}

func (w *twin) takes(
	ctx context.Context, what, query string, model []modeldb.Term, id string, numbers, epochs, had []int64,
) error {
	taken, err := list(w, ctx, query, func(row pgx.CollectableRow) (t modeldb.Term, err error) {
		return t, row.Scan(&t.Lane, &t.Epoch)
	}, modelScope, id, numbers, epochs, had)
	if err != nil {
		return err
	}
	slices.SortFunc(taken, func(a, b modeldb.Term) int { return int(a.Lane) - int(b.Lane) })
	for _, t := range taken {
		w.had[id][t.Lane] = t.Epoch
	}
	return w.same(what, model, taken)
}

func (w *twin) register(ctx context.Context, id string) error {
	w.model.Register(id)
	w.did["register"]++
	return pgx.BeginFunc(ctx, w.conn, func(tx pgx.Tx) error {
		for _, s := range []struct {
			query string
			args  []any
		}{
			{sqltext.AnnounceForwarder, []any{id, modelScope, []string{}, "n", 1e6, "{}", 0.0}},
			{sqltext.CreateLanes, []any{modelScope}},
			{sqltext.JoinForwarders, []any{id, 1e6}},
		} {
			if _, err := tx.Exec(ctx, sqltext.Tables{}.Render(s.query), s.args...); err != nil {
				return err
			}
		}
		return nil
	})
}

func (w *twin) members(ctx context.Context) error {
	type member struct {
		ID  string
		Has bool
	}
	members, err := list(w, ctx, sqltext.Members, func(row pgx.CollectableRow) (m member, err error) {
		return m, row.Scan(&m.ID, &m.Has, nil, nil, nil)
	}, modelScope)
	if err != nil {
		return err
	}
	var model []member
	ids, has := w.model.Members()
	for i, id := range ids {
		model = append(model, member{id, has[i]})
	}
	return w.same("members", model, members)
}

// read runs one of the other statements that read.
func (w *twin) read(ctx context.Context) error {
	rows := w.model.Rows()
	if w.chance(25) || len(rows) == 0 {
		xids, err := list(w, ctx, sqltext.Writers, pgx.RowTo[int64])
		if err != nil {
			return err
		}
		return w.same("writers", sorted(w.model.Writers()), sorted(xids))
	}
	lane, cursor, limit := rows[w.rng.IntN(len(rows))].Lane, w.rng.Int64N(rows[len(rows)-1].ID+1), 1+w.rng.Int64N(3)
	switch p := w.rng.IntN(3); p {
	case 0:
		dead := w.chance(50)
		var model []string
		for _, r := range w.model.Heads(lane, cursor, limit, dead) {
			wait := r.Due
			if r.Dead {
				wait = 0
			}
			model = append(model, fmt.Sprint(r.ID, r.Key, max(0, wait), r.Dead))
		}
		heads, err := list(w, ctx, sqltext.LoadBlocked, func(row pgx.CollectableRow) (_ string, err error) {
			var lane int16
			var id int64
			var key, topic string
			var wait float64
			var dead bool
			err = row.Scan(&lane, &id, &key, &topic, &wait, &dead)
			if lane < 0 {
				return "", err
			}
			return fmt.Sprint(id, key, int64(wait/10000+0.5)*10000, dead), err
		}, []int64{int64(lane)}, []int64{cursor}, limit, []string{}, dead)
		if err != nil {
			return err
		}
		return w.same("heads", model, slices.DeleteFunc(heads, func(s string) bool { return s == "" }))
	case 1:
		upto := cursor + w.rng.Int64N(20)
		found, err := list(w, ctx, sqltext.Sweep, func(row pgx.CollectableRow) (_ string, err error) {
			var id int64
			var key, topic string
			err = row.Scan(nil, &id, &key, &topic)
			return fmt.Sprint(id, key, topic), err
		}, []int64{int64(lane)}, []int64{cursor}, []int64{upto}, limit, []string{})
		if err != nil {
			return err
		}
		model := []string{}
		for _, r := range w.model.Sweep(lane, cursor, upto, limit) {
			model = append(model, fmt.Sprint(r.ID, r.Key, r.Topic))
		}
		return w.same("sweep", model, found)
	default:
		_, ids, _ := w.results()
		if len(ids) == 0 {
			return nil
		}
		pending, err := list(w, ctx, sqltext.Pending, pgx.RowTo[int64], ids)
		if err != nil {
			return err
		}
		return w.same("pending", sorted(w.model.Pending(ids)), sorted(pending))
	}
}

// requeue changes a row as an operator's requeue does.
func (w *twin) requeue(ctx context.Context) error {
	_, ids, _ := w.results()
	if len(ids) == 0 {
		return nil
	}
	id, due, generation := ids[:1], -w.time(), fmt.Sprint("g", w.times)
	if w.model.Requeue(id, due, generation) {
		return nil
	}
	w.did["requeue"]++
	_, err := w.exec(ctx, `update {outbox} set metadata = metadata || jsonb_build_object('outbox_generation', $2::text),
		due_at = clock_timestamp() + $3::float8 * interval '1 second', published_at = null, dead_at = null,
		attempts = 1, last_error = null where id = any ($1::bigint[])`, id, generation, float64(due))
	return err
}

func (w *twin) truncate(ctx context.Context) error {
	if w.model.Truncate() {
		return nil
	}
	w.did["truncate"]++
	w.said = append(w.said, "truncate")
	_, err := w.exec(ctx, "truncate {outbox} restart identity")
	return err
}
