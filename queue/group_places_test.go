package queue

import "testing"

// TestSlowClaimsLeaveThePlaces: claims that take long keep an eighth of the places together, whatever their number, and
// what they bring all the same gets what is free.
func TestSlowClaimsLeaveThePlaces(t *testing.T) {
	p := newPlaces(16)
	var slow []*kept
	for p.free() > 0 {
		k := p.take(min(p.free(), 3))
		slow = append(slow, &k)
	}
	if len(slow) != 6 {
		t.Fatalf("%d claims keep all places", len(slow))
	}
	for _, k := range slow {
		k.slowed()
	}
	if p.taken != 2 {
		t.Errorf("they keep %d places", p.taken)
	}
	if k := p.take(12); k.got(12) != 12 {
		t.Error("a claim does not get the places that it keeps")
	}
	for i, want := range []int{3, 0, 0} {
		// the first has one of its own and the two that are free, the second gives its own back
		if i == 1 {
			if got := slow[1].got(1); got != 1 {
				t.Errorf("a claim that has a place of its own gets %d", got)
			}
		}
		if got := slow[i*2].got(3); got != want {
			t.Errorf("slow claim %d gets %d places, not %d", i, got, want)
		}
	}
	if p.taken != p.most {
		t.Errorf("%d of %d places are taken", p.taken, p.most)
	}
	for range p.most {
		p.give()
	}
	for _, i := range []int{3, 5} {
		if got := slow[i].got(1); got != 1 {
			t.Errorf("with all places free a claim gets %d", got)
		}
	}
	if p.taken != 2 || p.slow != 0 {
		t.Errorf("%d are taken, %d by slow claims", p.taken, p.slow)
	}
}

// TestSlowClaimsLeaveTheRoomOfTheirServer: databases that hang leave room to others of the same DSN.
func TestSlowClaimsLeaveTheRoomOfTheirServer(t *testing.T) {
	for most := 1; most <= 20; most++ {
		all := newPlaces(100)
		s := &server{places: newPlaces(most), targets: map[*target]bool{{key: "a"}: true, {key: "b"}: true}}
		var slow []*keptBoth
		for i := range 4 {
			n := s.room()
			if n == 0 {
				t.Fatalf("of %d, %d claims that are slow leave nothing", most, i)
			}
			k := s.take(&all, n)
			if slow = append(slow, &k); most > 1 && i == 0 && s.room() == 0 {
				t.Errorf("of %d, one claim keeps all at once", most)
			}
			k.slowed()
		}
		k := s.take(&all, s.places.free())
		if n := k.got(most); n == 0 || s.places.free() != 0 || s.places.taken != most {
			t.Errorf("of %d, a claim gets %d", most, n)
		}
		for _, k := range slow {
			k.unused(k.got(3))
		}
		if s.places.taken != all.taken || s.places.taken > most || s.places.slow != 0 {
			t.Errorf("of %d, %d and %d are taken, %d by slow claims", most, s.places.taken, all.taken, s.places.slow)
		}
	}
}
