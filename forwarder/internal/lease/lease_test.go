package lease

import (
	"reflect"
	"testing"
	"time"
)

const ttl = 9 * time.Second

// scope returns the View of member "b" among live members; owners are the lanes' owners, repeated.
func scope(members []string, owners ...string) View {
	v := View{Me: "b", TTL: ttl, Held: map[int16]Held{}}
	for _, id := range members {
		v.Members = append(v.Members, Member{ID: id, Left: ttl})
	}
	for n := range int16(Lanes) {
		l := Lane{Assignment: Assignment{Lane: n, Epoch: 1}}
		if len(owners) > 0 {
			l.Owner = owners[int(n)%len(owners)]
		}
		for _, id := range members {
			l.Alive = l.Alive || id == l.Owner
		}
		v.Lanes = append(v.Lanes, l)
		if l.Owner == v.Me {
			v.Held[n] = Held{Epoch: 1}
		}
	}
	return v
}

func TestShare(t *testing.T) {
	for _, c := range []struct {
		members []string
		want    int
	}{
		{[]string{"b"}, 64}, {nil, 64}, {[]string{"a", "b"}, 32}, {[]string{"a", "b", "c"}, 21},
		{[]string{"b", "c", "d"}, 22},
	} {
		if got := scope(c.members).Plan().Share; got != c.want {
			t.Errorf("%v: %d, want %d", c.members, got, c.want)
		}
	}
	v := scope([]string{"b"})
	v.Stopping = true
	if got := v.Plan().Share; got != 0 {
		t.Errorf("stopping: %d", got)
	}
}

func TestTakesWhatIsFree(t *testing.T) {
	p := scope([]string{"a", "b"}).Plan()
	if len(p.Take) != 32 || p.Short != 0 || p.Next != ttl/3 || len(p.Release)+len(p.Lost)+len(p.Retake) > 0 {
		t.Errorf("%+v", p)
	}
	p = scope([]string{"b"}, "dead").Plan()
	if len(p.Take) != 64 || p.Take[5] != (Assignment{Lane: 5, Epoch: 1}) {
		t.Errorf("of a dead owner: %+v", p)
	}
}

func TestWaitsForWhatOthersHave(t *testing.T) {
	v := scope([]string{"a", "b"}, "a")
	for i, want := range []time.Duration{50, 100, 200, 400, 800, 1600, 3000, 3000} {
		p := v.Plan()
		if len(p.Take) > 0 || p.Short != i+1 || p.Next != want*time.Millisecond {
			t.Errorf("%d: %+v", i, p)
		}
		v.Short = p.Short
	}
	v.Short = 1 << 20
	if p := v.Plan(); p.Next != ttl/3 {
		t.Errorf("%+v", p)
	}
	v = scope([]string{"b"}, "b")
	v.Short = 5
	if p := v.Plan(); p.Short != 0 {
		t.Errorf("nothing is missing: %+v", p)
	}
}

func TestGivesBackWhatIsTooMuch(t *testing.T) {
	p := scope([]string{"a", "b"}, "b").Plan()
	if len(p.Release) != 32 || p.Short != 0 || len(p.Take) > 0 {
		t.Errorf("%+v", p)
	}
	v := scope([]string{"a", "b"}, "b")
	for n := range int16(32) {
		v.Held[n] = Held{Epoch: 1, Releasing: true}
	}
	if p := v.Plan(); len(p.Release) > 0 {
		t.Errorf("more than the surplus: %+v", p)
	}
	v = scope([]string{"b"}, "b")
	v.Stopping = true
	if p := v.Plan(); len(p.Release) != 64 || p.Short != 0 {
		t.Errorf("stopping: %+v", p)
	}
}

func TestNotices(t *testing.T) {
	v := scope([]string{"a", "b"}, "a", "b") // 1, 3, 5 ... are ours
	v.Lanes[1].Owner, v.Lanes[1].Epoch = "a", 2
	v.Lanes[3].Epoch = 2 // our own retake, whose reply was lost
	delete(v.Held, 5)
	p := v.Plan()
	if want := []Assignment{{Lane: 1, Epoch: 1}, {Lane: 3, Epoch: 1}}; !reflect.DeepEqual(p.Lost, want) {
		t.Errorf("lost %v, want %v", p.Lost, want)
	}
	if want := []Assignment{{Lane: 3, Epoch: 2}, {Lane: 5, Epoch: 1}}; !reflect.DeepEqual(p.Retake, want) {
		t.Errorf("to retake %v, want %v", p.Retake, want)
	}
	if p.Share != 32 || p.Short != 1 {
		t.Errorf("%+v", p)
	}
	v.Held = map[int16]Held{}
	if p := v.Plan(); len(p.Retake) != 31 || len(p.Release)+len(p.Take) > 0 {
		t.Errorf("nothing in memory: %+v", p)
	}
	v.Stopping = true
	if p := v.Plan(); len(p.Retake) > 0 {
		t.Errorf("lanes are retaken while stopping: %+v", p)
	}
}

func TestIsThereWhenALeaseRunsOut(t *testing.T) {
	v := scope([]string{"a", "b"}, "a", "b")
	v.Members[0].Left = time.Second
	v.Members[1].Left = time.Millisecond // our own
	if p := v.Plan(); p.Next != time.Second+afterExpiry {
		t.Errorf("%+v", p)
	}
}
