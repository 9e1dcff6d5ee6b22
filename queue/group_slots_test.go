package queue

import "testing"

// TestSlowClaimsLeaveSlots: all slow claims together keep an eighth of the slots. The messages that they return still
// get free slots.
func TestSlowClaimsLeaveSlots(t *testing.T) {
	p := newSlots(16)
	var slow []*reservation
	for p.free() > 0 {
		k := p.reserve(min(p.free(), 3))
		slow = append(slow, &k)
	}
	if len(slow) != 6 {
		t.Fatalf("%d claims keep all slots", len(slow))
	}
	for _, k := range slow {
		k.slowed()
	}
	if p.taken != 2 {
		t.Errorf("slow claims keep %d slots", p.taken)
	}
	if k := p.reserve(12); k.confirm(12) != 12 {
		t.Error("a claim does not get its own slots")
	}
	for i, want := range []int{3, 0, 0} {
		// the first has its own and the two free ones, the second gives its own back
		if i == 1 {
			if got := slow[1].confirm(1); got != 1 {
				t.Errorf("a claim with its own slot gets %d", got)
			}
		}
		if got := slow[i*2].confirm(3); got != want {
			t.Errorf("slow claim %d gets %d slots, not %d", i, got, want)
		}
	}
	if p.taken != p.most {
		t.Errorf("%d of %d slots are taken", p.taken, p.most)
	}
	for range p.most {
		p.release()
	}
	for _, i := range []int{3, 5} {
		if got := slow[i].confirm(1); got != 1 {
			t.Errorf("with all slots free a claim gets %d", got)
		}
	}
	if p.taken != 2 || p.slow != 0 {
		t.Errorf("%d slots are taken, %d by slow claims", p.taken, p.slow)
	}
}

// TestSlowClaimsLeaveTheRoomOfTheirServer: databases that hang leave room for others of the same DSN.
func TestSlowClaimsLeaveTheRoomOfTheirServer(t *testing.T) {
	for most := 1; most <= 20; most++ {
		all := newSlots(100)
		s := &connSlots{slots: newSlots(most), databases: 2}
		var slow []*reservations
		for i := range 4 {
			n := s.room()
			if n == 0 {
				t.Fatalf("of %d slots, %d slow claims leave none", most, i)
			}
			k := s.reserve(&all, n)
			if slow = append(slow, &k); most > 1 && i == 0 && s.room() == 0 {
				t.Errorf("one claim keeps all %d slots", most)
			}
			k.slowed()
		}
		k := s.reserve(&all, s.slots.free())
		if n := k.confirm(most); n == 0 || s.slots.free() != 0 || s.slots.taken != most {
			t.Errorf("of %d slots, a claim gets %d", most, n)
		}
		for _, k := range slow {
			k.release(k.confirm(3))
		}
		if s.slots.taken != all.taken || s.slots.taken > most || s.slots.slow != 0 {
			t.Errorf("of %d, %d and %d are taken, %d by slow claims", most, s.slots.taken, all.taken, s.slots.slow)
		}
	}
}
