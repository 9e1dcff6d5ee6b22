package kafka

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	outbox "github.com/millrace-go/watermill-outbox"
)

// TestTheEndDoesNotWaitForTheDatabase, if that hangs while parked messages are read.
func TestTheEndDoesNotWaitForTheDatabase(t *testing.T) {
	t.Parallel()
	bubble(t, nil, func(w *world) {
		server := hanging{make(chan struct{})}
		pool := sql.OpenDB(server)
		db, err := outbox.FromSQL(pool, outbox.DBConfig{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		l := &lot{subscription: w.sub, db: db, wake: make(chan struct{}, 1)}
		l.rouse()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			l.runToTheEnd()
		}()
		synctest.Wait()
		w.close()
		time.Sleep(w.sub.cfg.CloseTimeout + leaveTimeout)
		over := isClosed(ended)
		lines := w.errors()
		close(server.until)
		if <-ended; !over || len(lines) != 1 {
			t.Errorf("the end waits for the database: %v, with error lines %q", !over, lines)
		}
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
}

// hanging is a server that lets nobody connect, whatever becomes of the context.
type hanging struct{ until chan struct{} }

func (h hanging) Connect(context.Context) (driver.Conn, error) {
	<-h.until
	return nil, errors.New("no server")
}

func (hanging) Driver() driver.Driver { return nil }
