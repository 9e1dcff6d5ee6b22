package queue

import (
	"testing"
	"testing/synctest"
)

// TestBatcher: items added during a write are in the next batch, except those that were removed. Add waits while the
// batcher is full, and close waits until everything is written.
func TestBatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		written, goOn := make(chan []int), make(chan bool)
		b := newBatcher(3, func(batch []int) {
			written <- batch
			<-goOn
		})
		b.add(1)
		if batch := <-written; len(batch) != 1 {
			t.Fatalf("first written: %v", batch)
		}
		for i := range 3 {
			b.add(2 + i)
		}
		added, closed := false, false
		go func() {
			b.add(5)
			added = true
		}()
		synctest.Wait()
		if added {
			t.Error("an item was added without room")
		}
		b.remove(3)
		synctest.Wait()
		if !added {
			t.Error("an item was not added although there was room")
		}
		go func() {
			b.close()
			closed = true
		}()
		synctest.Wait()
		if closed {
			t.Error("closed before everything was written")
		}
		goOn <- true
		if batch := <-written; len(batch) != 3 || batch[0] != 2 || batch[1] != 4 || batch[2] != 5 {
			t.Errorf("written next: %v", batch)
		}
		goOn <- true
		synctest.Wait()
		if b.add(6); !closed || len(b.waiting) > 0 {
			t.Errorf("closed: %v, waiting: %v", closed, b.waiting)
		}
	})
}
