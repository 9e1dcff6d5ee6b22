package kafka

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestBusyKeyDrains: a look tells of a key whose next message is being stored when it begins, as of any other, and only
// lets it not go.
func TestBusyKeyDrains(t *testing.T) {
	t.Parallel()
	parkingBubble(t, func(_ *world, p *partition) {
		k := p.parks("0/k")
		p.lot.keys.Add(1)
		glances := func(busy bool, piles map[string]pile) {
			p.storing("0/k", true)
			if !busy {
				p.storing("0/k", false)
			}
			g := glance{began: p.known(), piles: piles}
			p.see(g)
			p.storing("0/k", false)
		}
		glances(true, map[string]pile{"0/k": {oldest: 1, rows: 5000}})
		if k.rows != 5000 {
			t.Fatalf("%d rows are known while it is busy", k.rows)
		}
		time.Sleep(time.Second)
		glances(true, map[string]pile{"0/k": {oldest: 4500, rows: 500}})
		if !k.moved.Equal(time.Now()) {
			t.Fatal("that it moved is not seen while it is busy")
		}
		p.window.Add(9, []byte("k"), 1, record{})
		if to, _ := p.fate(p.window.Start(false)); to != toWait {
			t.Fatal("its head does not wait")
		}
		glances(true, nil)
		if k.rows != 0 || p.parking.keys["0/k"] == nil {
			t.Fatal("a busy key has left, or its rows are old")
		}
		glances(false, nil)
		if p.parking.keys["0/k"] != nil {
			t.Fatal("it does not leave")
		}
	})
}

// TestDrainingStopsNoPartition: a key that drains holds its partition no longer than one that fails, and has turns.
func TestDrainingStopsNoPartition(t *testing.T) {
	t.Parallel()
	parkingBubble(t, func(_ *world, p *partition) {
		k := p.parks("0/k")
		p.lot.keys.Add(1)
		p.window.Add(0, []byte("k"), 1, record{})
		it := p.window.Start(false)
		k.pile = pile{oldest: 1, rows: drainRows}
		fate := func() fate {
			k.moved = time.Now()
			to, _ := p.fate(it)
			return to
		}
		if fate() != toWait {
			t.Fatal("it does not drain")
		}
		p.paused = time.Now()
		if fate() != toWait {
			t.Fatal("it does not drain when the partition is paused")
		}
		time.Sleep(after)
		if fate() != toPark {
			t.Fatal("it holds a partition that has been paused for long")
		}
		p.paused = time.Time{}
		waits := 0
		const seconds = 4 * notPaused * int(after/time.Second)
		for range seconds {
			if fate() == toWait {
				waits++
			}
			time.Sleep(time.Second)
		}
		if waits != seconds/2 {
			t.Errorf("it drains for %d s of %d", waits, seconds)
		}
	})
}

// TestOneLookServesAllPartitions: however many partitions have parked keys, the table is looked at once a second.
func TestOneLookServesAllPartitions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		begun := time.Now()
		var looks []string
		var o oneLook
		o.piles = func(_ context.Context, keys []string) (map[string]pile, error) {
			looks = append(looks, fmt.Sprint(time.Since(begun), keys))
			return map[string]pile{"0/k": {oldest: 7}}, nil
		}
		to := make(chan glance, 1)
		ask := func(key string) {
			o.ask(ctx, glance{began: map[string]parked{key: {}}}, to)
		}
		ask("0/k")
		if g := <-to; g.piles["0/k"].oldest != 7 || !time.Now().Equal(begun) {
			t.Fatalf("found %v after %s", g.piles, time.Since(begun))
		}
		for i := range 3 {
			answered := make(chan glance, 1)
			o.ask(ctx, glance{began: map[string]parked{fmt.Sprint(i, "/k"): {}}}, answered)
			time.Sleep(100 * time.Millisecond)
			if i == 2 {
				<-answered
			}
		}
		if since := time.Since(begun); since != time.Second {
			t.Errorf("the others are answered after %s", since)
		}
		synctest.Wait()
		if got := fmt.Sprint(looks); got != "[0s [0/k] 1s [0/k 1/k 2/k]]" {
			t.Errorf("looks: %s", got)
		}
	})
}
