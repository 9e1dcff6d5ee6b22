package core

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// write is a call of Publish or Capture.
type write struct {
	ctx     context.Context // for observers
	db      *DB
	topic   string
	records []record
}

func (w write) told(err error) { w.db.writeEnd(w.ctx, w.topic, w.records, 0, err) }

// write writes records immediately.
func (s *scope) write(w write) error {
	begun := time.Now()
	err := s.use(func() error {
		if !s.tx.db.shares(w.db) {
			return ErrOtherDB
		}
		for _, stmt := range chunks(s.tx.insertInto(w.db), w.records) {
			if _, err := s.tx.q.Exec(w.ctx, stmt.SQL, stmt.Args...); err != nil {
				if s.tx.ours {
					err = drive.Checked(w.ctx, err)
				}
				return fmt.Errorf("write to %s: %w", w.db.outbox, text.Stored(err))
			}
		}
		s.tx.wroteTo(w.db, OutboxNotification)
		return nil
	})
	w.db.writeEnd(w.ctx, w.topic, w.records, time.Since(begun), err)
	return err
}

// wait keeps records for COMMIT, if they may wait.
func (s *scope) wait(w write) (waits bool, err error) {
	err = s.use(func() error {
		if !s.tx.db.shares(w.db) {
			return ErrOtherDB
		}
		if waits = s.tx.ours && s.tx.q.Later(); waits {
			s.waiting = append(s.waiting, w)
		}
		return nil
	})
	return waits, err
}

func (t *tx) insertInto(db *DB) string {
	if t.q.Marked() {
		return db.insertMarked
	}
	return db.insert
}

// wrote records a transaction's writes to the tables of a handle.
type wrote struct {
	tables   Notification
	notified bool // sent with COMMIT
}

func (t *tx) wroteTo(db *DB, n Notification) {
	if t.wrote == nil {
		t.wrote = map[*DB]wrote{}
	}
	t.wrote[db] = wrote{tables: t.wrote[db].tables.and(n)}
}

// notifications returns the statements, sent with COMMIT, that notify other processes.
func (t *tx) notifications(own drive.OwnTx) []drive.Statement {
	if !own.Hints() {
		return nil
	}
	var list []drive.Statement
	for db, what := range t.wrote {
		if db.notifier.due() {
			list = append(list, drive.Statement{SQL: sqltext.Notify,
				Args: []any{db.notifier.channel, what.tables.payload(db.id)}})
			what.notified = true
			t.wrote[db] = what
		}
	}
	return list
}

// statements returns the statements that write waiting messages. Consecutive messages for the same table share a
// statement, so the messages that a handler returned need only one statement even if they were captured in several
// calls.
func (t *tx) statements(waiting []write) []drive.Statement {
	var list []drive.Statement
	for len(waiting) > 0 {
		db := waiting[0].db
		var records []record
		for len(waiting) > 0 && waiting[0].db == db {
			records = append(records, waiting[0].records...)
			waiting = waiting[1:]
		}
		list = append(list, chunks(t.insertInto(db), records)...)
	}
	return list
}
