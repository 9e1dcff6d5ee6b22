package clean

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

// deadInterval is the time between rounds through the dead messages. Each round that finds old ones writes to the audit
// log, which nothing deletes.
const deadInterval = time.Hour

// maxRefused is the number of messages in a row that may be refused, for example by a trigger, before the round ends,
// because all others may be refused too. The next round continues after them.
const maxRefused = 100

// endTimeout limits the statement that ends an entry in the audit log, which does not depend on the context of its
// turn.
const endTimeout = 5 * time.Second

// Dead discards the messages of a table that have been dead for longer than a retention. A round, once an hour, reads
// each dead message once. Any number of goroutines may use it.
type Dead struct {
	DB        *core.DB
	Logger    watermill.LoggerAdapter
	Store     *sqltext.Store
	In        string        // table name in the audit log: outbox, inbox or queue
	Topics    []string      // empty = all topics
	Retention time.Duration // 0 = forever
	Timeout   time.Duration // per statement

	mu      sync.Mutex
	at      time.Time // time of the next turn
	after   deadPlace // last message read
	size    int       // page size; 0 = no round in progress
	inARow  int       // refused messages in a row
	failing *trouble.RetryLog
}

// deadPlace is a position in the index of dead messages.
type deadPlace struct {
	about, at, name string // topic or consumer, time, and ID
	id              int64
}

var firstDead = deadPlace{at: "-infinity"}

// deadPage holds the dead messages of a page that are past the retention.
type deadPage struct {
	owners, names []string
	versions      []int64
	rows, most    int // number of dead messages read, and its limit
	last          deadPlace
}

// Turn continues a due round for as long as share, and logs errors. It reports whether messages may be left.
func (d *Dead) Turn(ctx context.Context, share time.Duration) (more bool) {
	if !d.lockIfDue() {
		return false
	}
	defer d.mu.Unlock()
	if d.failing == nil {
		// Cause: the database.
		// Cure: dead messages stay; without the grant, leave DeadRetention at 0.
		d.failing = &trouble.RetryLog{Logger: d.Logger, What: "discarding dead messages past DeadRetention"}
	}
	more, err := d.discard(ctx, share)
	d.failing.Report(err)
	return more
}

// Discard finishes a due round, and returns its error.
func (d *Dead) Discard(ctx context.Context) error {
	if !d.lockIfDue() {
		return nil
	}
	defer d.mu.Unlock()
	_, err := d.discard(ctx, 0)
	return err
}

// lockIfDue locks mu if a round is due and no other goroutine is working on it.
func (d *Dead) lockIfDue() bool {
	if d.Retention == 0 || !d.mu.TryLock() {
		return false
	}
	due := !time.Now().Before(d.at)
	if !due {
		d.mu.Unlock()
	}
	return due
}

// discard must be called with mu held. If share is 0, it finishes the round.
func (d *Dead) discard(ctx context.Context, share time.Duration) (more bool, err error) {
	if d.size == 0 {
		d.size, d.after = Batch, firstDead
	}
	t := deadTurn{Dead: d, reason: "dead for longer than " + d.Retention.String()}
	begun := time.Now()
	for more = true; more && (share == 0 || time.Since(begun) < share); {
		began := time.Now()
		if more, err = t.page(ctx); err != nil || more && !core.Pause(ctx, time.Since(began)) {
			break
		}
	}
	switch {
	case ctx.Err() != nil:
		more, err = false, fmt.Errorf("interrupted: %w", ctx.Err())
	case !more:
		d.at, d.inARow = begun.Add(deadInterval), 0
	}
	if err = cmp.Or(err, t.refused); err != nil {
		err = fmt.Errorf("discard dead messages of the %s: %w", d.In, explainDead(err))
	}
	return more, t.end(ctx, err)
}

// deadTurn is one part of a round, with its own entry in the audit log.
type deadTurn struct {
	*Dead
	reason    string
	entry     int64 // 0 = nothing found yet
	discarded int64
	refused   error // the first error of a single message
}

// page discards the old messages of the next page. If that fails, it halves the page size, down to one message, which
// it skips. It reports whether messages may be left.
func (t *deadTurn) page(ctx context.Context) (more bool, err error) {
	p, err := t.read(ctx)
	if err == nil && len(p.names) > 0 && t.entry == 0 {
		err = t.begin(ctx)
	}
	if err != nil {
		return false, err
	}
	switch err := t.change(ctx, p); {
	case err == nil:
		t.size = min(2*t.size, Batch)
	case len(p.names) > 1 || ctx.Err() != nil:
		t.size = max(1, p.rows/2)
		return true, nil
	default:
		t.refused = cmp.Or(t.refused, fmt.Errorf("message %s: %w", p.names[0], err))
		t.inARow++
	}
	if t.after = p.last; p.rows < p.most {
		t.after = firstDead
		return false, nil
	}
	return t.inARow < maxRefused, nil
}

func (t *deadTurn) read(ctx context.Context) (p deadPage, err error) {
	p.last, p.most = t.after, t.size
	topics := t.Topics
	if topics == nil {
		topics = []string{}
	}
	err = t.query(ctx, func(rows drive.Rows) error {
		var owner string
		var version int64
		var old bool
		p.rows++
		err := rows.Scan(&p.last.about, &p.last.at, &p.last.name, &p.last.id, &owner, &version, &old)
		if old {
			p.owners, p.names, p.versions = append(p.owners, owner), append(p.names, p.last.name), append(p.versions, version)
		}
		return err
	}, t.Store.OldDead, int64(p.most), topics, t.after.about, t.after.at, t.after.name, t.after.id, t.Retention.Seconds())
	return p, err
}

func (t *deadTurn) begin(ctx context.Context) error {
	filter, err := json.Marshal(map[string]any{"in": t.In, "states": []string{"dead"}})
	if err != nil {
		return err
	}
	return t.query(ctx, func(rows drive.Rows) error { return rows.Scan(&t.entry) },
		sqltext.BeginAct, sqltext.DeadRetention, "discard", t.reason, string(filter))
}

// change discards messages with the statement of admin.Discard. It skips messages that another session has locked.
func (t *deadTurn) change(ctx context.Context, p deadPage) error {
	if len(p.names) == 0 {
		return nil
	}
	var n int64
	var blocked []byte
	var drawn *int64
	err := t.query(ctx, func(rows drive.Rows) error { return rows.Scan(&n, &blocked, &drawn) },
		t.Store.DiscardOld, p.owners, p.names, []string{"dead"}, t.entry,
		"discarded by "+sqltext.DeadRetention+": "+t.reason, p.versions, t.Retention.Seconds())
	if err == nil {
		t.discarded, t.inARow = t.discarded+n, 0
	}
	return err
}

// end completes the entry in the audit log, with err if it is not nil, and returns the error to report.
func (t *deadTurn) end(ctx context.Context, err error) error {
	if t.entry == 0 {
		return err
	}
	t.DB.Wake()
	t.Logger.Info("discarded dead messages past DeadRetention", watermill.LogFields{
		"in": t.In, "messages": t.discarded, "retention": t.Retention.String(), "audit_id": t.entry,
	})
	outcome := ""
	if err != nil {
		outcome = text.OfError(err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	return cmp.Or(err, explainDead(t.query(ctx, nil, sqltext.EndAct, t.entry, outcome)))
}

func (d *Dead) query(ctx context.Context, scan func(drive.Rows) error, statement string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	return drive.Collect(ctx, d.DB, scan, d.DB.Render(statement), args...)
}

func explainDead(err error) error {
	if text.SQLState(err) == text.InsufficientPrivilege {
		return fmt.Errorf("%w (grant the role what schema.Roles grants an admin, or leave DeadRetention at 0)", err)
	}
	return text.Explain(err)
}
