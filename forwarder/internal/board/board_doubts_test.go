package board_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
)

// charged is how many failures are to be settled.
func (d *desk) charged() (ids []int64) {
	d.t.Helper()
	_, failed := d.b.Results(0)
	if len(failed) > 0 {
		d.t.Fatal("failures without being asked for")
	}
	published, failed := d.b.Results(1000)
	for _, f := range failed {
		ids = append(ids, f.Row.ID)
	}
	d.write(published, failed)
	return ids
}

func TestAMessageThatFailsWhileOthersArePublishedIsCharged(t *testing.T) {
	d := newDesk(t, board.Config{})
	d.put(0, "x", "a", 1, 2)
	d.put(0, "y", "a", 3)
	d.put(0, "z", "b", 4)
	d.read()
	c1, c3, c4 := d.next(1), d.next(4), d.next(3)
	d.returned(c1, board.Unknown)
	d.returned(c3, board.OK) // of another topic
	d.want(d.charged())
	d.none() // row 2 waits behind row 1
	d.returned(c4, board.OK)
	d.want(d.charged(), 1)
	d.told(board.RowRejected)
	d.tick(time.Second)
	d.read()
	d.returned(d.next(1), board.OK)
	d.want(d.drain(), 2)
}

func TestWhenEverythingFailsNobodyIsCharged(t *testing.T) {
	d := newDesk(t, board.Config{})
	d.put(0, "x", "a", 1, 2)
	d.put(0, "", "a", 3)
	d.put(0, "y", "a", 4)
	d.read()
	c1, c3, c4 := d.next(1), d.next(3), d.next(4)
	d.returned(c1, board.Unknown)
	d.returned(c3, board.Unknown)
	d.told()
	d.returned(c4, board.Unknown) // nothing else is under way, or may go
	if len(d.reports) != 1 || !d.reports[0].Guessed || d.reports[0].Err != errBroker {
		t.Fatalf("%+v", d.reports)
	}
	d.told(board.TopicPaused)
	for range 5 {
		d.tick(time.Second)
		d.read()
		d.returned(d.next(), board.Unknown)
		d.none()
	}
	d.want(d.charged())
	d.reports = nil
	d.tick(time.Second)
	d.read()
	trial := d.next()
	d.returned(trial, board.OK)
	d.told(board.TopicResumed)
	if got := d.drain(); len(got) != 3 {
		t.Fatalf("published %d and %v", trial.Row.ID, got)
	}
}

func TestAMessageThatFailsAloneIsCharged(t *testing.T) {
	d := newDesk(t, board.Config{})
	d.put(0, "x", "a", 1, 2)
	d.read()
	for i := range 5 {
		c := d.next(1)
		if c.Attempt != i+1 {
			t.Fatalf("attempt %d", c.Attempt)
		}
		d.returned(c, board.Unknown)
		d.want(d.charged(), 1)
		d.tick(time.Minute)
		d.read()
	}
}

// A suspect does not wait for ever for others.
func TestASuspectWaitsForASecond(t *testing.T) {
	for _, other := range []string{"a", "b"} {
		d := newDesk(t, board.Config{})
		d.put(0, "x", "a", 1)
		d.put(0, "y", other, 2)
		d.read()
		c1 := d.next(1)
		d.tick(500 * time.Millisecond)
		d.next(2)
		d.returned(c1, board.Unknown)
		d.want(d.charged())
		d.tick(999 * time.Millisecond)
		d.want(d.charged())
		if tick, _ := d.b.Due(); !tick.Equal(d.now.Add(time.Millisecond)) {
			t.Fatalf("tick in %s", tick.Sub(d.now))
		}
		d.tick(time.Millisecond)
		d.want(d.charged(), 1)
	}
}

// Sixteen in a row are enough, whatever else is under way.
func TestManySuspects(t *testing.T) {
	d := newDesk(t, board.Config{Concurrency: 64})
	for id := int64(1); id <= 64; id++ {
		d.put(0, fmt.Sprint(id), "a", id)
	}
	d.read()
	for id := int64(1); id <= 64; id++ {
		d.next(id)
	}
	calls := d.calls
	for i, c := range append([]*board.Call{}, calls...) {
		if d.returned(c, board.Unknown); i == 14 {
			d.told()
		} else if i == 15 {
			d.told(board.TopicPaused)
		}
	}
	d.want(d.charged())
	if c := d.b.Counts(); c.Parked != 64 || c.Unsettled != 0 {
		t.Fatalf("%+v", c)
	}
}

// Topics with one message each show together that their publisher's broker is out, and not that of another.
func TestTopicsOfAPublisherShareTheirDoubts(t *testing.T) {
	for _, same := range []bool{true, false} {
		d := newDesk(t, board.Config{Broker: func(topic string) int {
			if topic == "b" && !same {
				return 1
			}
			return 0
		}})
		d.put(0, "x", "a", 1)
		d.put(0, "y", "b", 2)
		d.read()
		c1, c2 := d.next(1), d.next(2)
		d.returned(c1, board.Unknown)
		d.want(d.charged())
		d.returned(c2, board.Unknown)
		if same {
			d.want(d.charged())
			d.told(board.TopicPaused, board.TopicPaused)
		} else {
			d.want(d.charged(), 2, 1)
		}
	}
}

// A message that failed uncharged is charged when it fails again after its topic has worked, also if nothing else is
// published then.
func TestAMessageThatFailsAgain(t *testing.T) {
	d := newDesk(t, board.Config{})
	d.put(0, "x", "a", 1)
	d.put(0, "y", "a", 2)
	d.read()
	c1, c2 := d.next(1), d.next(2)
	d.returned(c1, board.Unknown)
	d.returned(c2, board.Unknown)
	d.put(0, "z", "a", 3)
	d.tick(500 * time.Millisecond)
	d.read()
	d.tick(500 * time.Millisecond)
	d.read()
	d.returned(d.next(3), board.OK) // the one that came last
	d.read()
	c1, c2 = d.next(), d.next()
	d.returned(c1, board.Unknown)
	d.returned(c2, board.Unknown)
	d.want(d.charged(), c1.Row.ID, c2.Row.ID)
}

// A suspect whose lane is lost, or handed back, is nobody's.
func TestSuspectsGoWithTheirLane(t *testing.T) {
	for _, lost := range []bool{true, false} {
		d := newDesk(t, board.Config{}, 0, 1)
		d.put(0, "x", "a", 1)
		d.put(1, "y", "a", 2)
		d.read()
		c1 := d.next()
		d.next()
		d.returned(c1, board.Unknown)
		if term := c1.Row.Term; lost {
			d.b.LanesLost(term)
		} else {
			d.b.HandBack(term)
			if d.after(); len(d.free) != 1 {
				t.Fatalf("%v is not free", term)
			}
		}
		d.after()
		if c := d.b.Counts(); c.Unsettled != 0 {
			t.Fatalf("%+v", c)
		}
		d.returned(d.calls[0], board.OK)
		d.want(d.charged())
	}
}

// A suspect that timed out may be published late.
func TestASuspectThatIsPublishedLate(t *testing.T) {
	d := newDesk(t, board.Config{PublishTimeout: 3 * time.Second})
	d.put(0, "x", "a", 1, 2)
	d.put(0, "y", "a", 3)
	d.read()
	c1 := d.next(1)
	d.tick(2500 * time.Millisecond)
	d.next(3)
	d.tick(500 * time.Millisecond)
	d.timesOut(board.Unknown)
	d.returned(c1, board.OK)
	d.want(d.charged())
	d.read()
	d.next(2)
	if c := d.b.Counts(); c.Unsettled != 0 {
		t.Fatalf("%+v", c)
	}
}

// tried waits for a trial, no longer than a second and a little.
func (d *desk) tried() *board.Call {
	d.t.Helper()
	by := d.now.Add(1100 * time.Millisecond)
	for range 100 {
		d.read()
		if c := d.next(); c != nil {
			return c
		}
		_, read := d.b.Due()
		if read.IsZero() || read.After(by) {
			d.t.Fatalf("nothing is tried before %s", read.Sub(d.now))
		}
		d.tick(max(0, read.Sub(d.now)))
	}
	d.t.Fatal("it reads and reads")
	return nil
}

// paused has two topics fail until their pauses are long.
func paused(t *testing.T, v board.Verdict) *desk {
	d := newDesk(t, board.Config{})
	for i, topic := range []string{"a", "b"} {
		for n := range int64(4) {
			id := int64(10*i) + n + 1
			d.put(0, fmt.Sprint(id), topic, id)
		}
	}
	d.read()
	for c := d.next(); c != nil; c = d.next() {
		d.returned(c, v)
	}
	d.tick(0)
	for range 40 { // 1 s, 2 s and so on
		_, read := d.b.Due()
		d.tick(max(0, read.Sub(d.now)))
		d.read()
		for c := d.next(); c != nil; c = d.next() {
			d.returned(c, v)
		}
	}
	return d
}

// However long the topics of a publisher are paused, one of them is tried within a second; and when it works the others
// are.
func TestOneTopicTriesForTheOthers(t *testing.T) {
	for _, v := range []board.Verdict{board.Unknown, board.Unavailable} {
		d := paused(t, v)
		_, read := d.b.Due()
		if wait := read.Sub(d.now); wait > time.Second {
			t.Fatalf("%v: nothing is tried for %s", v, wait)
		}
		d.tick(read.Sub(d.now))
		d.read()
		scout := d.next()
		d.none()
		d.reports = nil
		d.returned(scout, board.OK)
		if _, read := d.b.Due(); read.After(d.now) {
			t.Fatalf("%v: the other topic is not tried before %s", v, read.Sub(d.now))
		}
		d.read()
		for c := d.next(); c != nil; c = d.next() {
			d.returned(c, board.OK)
		}
		if d.drain(); len(d.table) != 0 {
			t.Fatalf("%v: %d rows are left", v, len(d.table))
		}
	}
}

// A topic that was never paused has others tried once, as their trouble may be their own.
func TestATopicThatWorksHurriesOthersOnce(t *testing.T) {
	d := paused(t, board.Unavailable)
	for n := range int64(100) {
		d.put(0, "", "c", 1000+n)
		d.read()
		for c := d.next(); c != nil; c = d.next() {
			if c.Row.Topic == "c" {
				d.returned(c, board.OK)
			} else {
				d.returned(c, board.Unavailable)
			}
		}
		d.settle()
	}
	tries := 0
	for _, r := range d.reports {
		if r.Kind == board.TopicPaused {
			tries++
		}
	}
	d.reports = nil
	for n := range int64(100) {
		d.put(0, "", "c", 2000+n)
		d.read()
		for c := d.next(); c != nil; c = d.next() {
			if c.Row.Topic != "c" {
				t.Fatal("tried again at once")
			}
			d.returned(c, board.OK)
		}
		d.settle()
	}
}

// A head that was put off for a pause is tried when the pause ends sooner.
func TestHeadsThatWerePutOffAreHurried(t *testing.T) {
	d := newDesk(t, board.Config{})
	d.put(0, "x", "a", 1)
	d.put(0, "y", "b", 2)
	d.put(0, "z", "b", 3)
	d.read()
	c1, c2 := d.next(1), d.next(2)
	d.returned(c1, board.Retry)
	d.settle()
	d.returned(c2, board.Unavailable)
	d.tick(time.Second)
	for range 60 {
		d.returned(d.tried(), board.Unavailable)
	}
	d.returned(d.tried(), board.OK)
	if d.drain(); len(d.table) != 0 {
		t.Fatalf("%d rows are left", len(d.table))
	}
}

// A call that returns late, when its lane has been lost and taken again, says nothing of what failed under the same id
// since: that may be another message, and its head would never be tried again.
func TestALateSuccessOfAnotherTermVouchesForNobody(t *testing.T) {
	d := newDesk(t, board.Config{})
	d.put(0, "k", "a", 1, 2)
	d.put(0, "z", "a", 9)
	d.read()
	c1, c9 := d.next(1), d.next(9) // c9 keeps the verdict open
	d.b.LanesLost(d.terms[0])
	d.after()
	d.take(0)
	d.read()
	d.returned(d.next(1), board.Unknown)
	d.returned(c1, board.OK)
	d.settle()
	d.returned(c9, board.OK)
	for range 10 {
		d.tick(time.Minute)
		d.read()
		d.drain()
	}
	if len(d.table) > 0 {
		t.Fatalf("%d messages are never published", len(d.table))
	}
}
