package integration_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// The kinds of messages: first word of a payload, whose second is the message's position under its key. Those that are
// delayed have no part in the order, and are numbered for themselves; their third word is when they are due.
const (
	kindPlain   = "plain"
	kindFails   = "fails" // most of the time
	kindDelayed = "delayed"
)

// volumeLedger knows what was committed, what was given up by an operator, and what arrived.
type volumeLedger struct {
	mu        sync.Mutex
	keys      map[string]*volumeKey // by kind and key
	committed int
	arrived   int // distinct
	copies    int
	discarded int
	invented  int
	disorder  int
	early     int // before they were due
	blocked   int // found dead by the operator, so that their keys waited
	wrong     []string
	rolls     [6]int // sums of what rolls told
}

// volumeKey are messages of a key in their order, counted from 1.
type volumeKey struct {
	committed int
	next      int          // all before are there, or were discarded
	ahead     map[int]bool // those behind it that are
	gone      map[int]bool // discarded
}

func newVolumeLedger() *volumeLedger { return &volumeLedger{keys: map[string]*volumeKey{}} }

func (l *volumeLedger) key(name string) *volumeKey {
	k := l.keys[name]
	if k == nil {
		k = &volumeKey{next: 1, ahead: map[int]bool{}, gone: map[int]bool{}}
		l.keys[name] = k
	}
	return k
}

func volumeName(kind, key string) string {
	if kind == kindDelayed {
		return kind + " " + key
	}
	return key
}

func (l *volumeLedger) commit(name string, upto int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.key(name)
	l.committed += upto - k.committed
	k.committed = upto
}

// discard is called before the operator discards a message.
func (l *volumeLedger) discard(name string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.key(name)
	if n < k.next || k.ahead[n] { // it has arrived and was refused, or is discarded once more
		return
	}
	k.gone[n] = true
	l.discarded++
	l.advance(k)
}

func (l *volumeLedger) advance(k *volumeKey) {
	for k.gone[k.next] || k.ahead[k.next] {
		delete(k.ahead, k.next)
		k.next++
	}
}

func (l *volumeLedger) fault(count *int, format string, args ...any) {
	*count++
	if len(l.wrong) < 10 {
		l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
	}
}

// read takes a line of what processes tell.
func (l *volumeLedger) read(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	words := strings.Fields(line)
	if len(words) == 7 && words[0] == "rolled" {
		for i := range l.rolls {
			n, _ := strconv.Atoi(words[i+1])
			l.rolls[i] += n
		}
		return
	}
	if len(words) < 4 {
		l.fault(&l.invented, "%q was published", line)
		return
	}
	key, kind := words[0], words[1]
	n, err := strconv.Atoi(words[2])
	k := l.key(volumeName(kind, key))
	switch {
	case err != nil:
		l.fault(&l.invented, "%q was published", line)
	case n < k.next && !k.gone[n] || k.ahead[n]:
		l.copies++
	case k.gone[n]: // it was discarded before its arrival was read
		delete(k.gone, n)
		l.discarded--
		l.arrived++
	case kind == kindDelayed:
		due, _ := strconv.ParseInt(words[3], 10, 64)
		if at, _ := strconv.ParseInt(words[4], 10, 64); at < due {
			l.fault(&l.early, "%s was published %d us before it was due", line, due-at)
		}
		k.ahead[n] = true
		l.arrived++
	case n == k.next:
		k.ahead[n] = true
		l.arrived++
	default:
		l.fault(&l.disorder, "key %s: %d arrived before %d", key, n, k.next)
		k.ahead[n] = true
		l.arrived++
	}
	l.advance(k)
}

// missing counts what was committed and is not there, and what is there and was never committed.
func (l *volumeLedger) missing() (lost int, such []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, k := range l.keys {
		for n := k.next; n <= k.committed; n++ {
			if !k.ahead[n] && !k.gone[n] {
				lost++
				such = append(such, fmt.Sprintf("%s %d", name, n))
			}
		}
	}
	return lost, such[:min(10, len(such))]
}

// unknown counts what arrived and was never committed, once all writers are done.
func (l *volumeLedger) unknown() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, k := range l.keys {
		for n := range k.ahead {
			if n > k.committed {
				l.fault(&l.invented, "%s %d was published and never committed", name, n)
			}
		}
		if k.next > k.committed+1 {
			l.fault(&l.invented, "%s was published up to %d and committed up to %d", name, k.next-1, k.committed)
		}
	}
}

func (l *volumeLedger) outstanding() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.committed - l.arrived - l.discarded
}

func (l *volumeLedger) total() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.committed
}
