package admin

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// asked bounds an act to the messages that existed when it began, or that its dry run counted. No column shows since
// when a message has been failing, or dead in the queue. So a dry run records each message that it counted, up to
// dryCount, and an act with that preview changes only these.
type asked struct {
	upto int64           // outbox: the largest id
	at   time.Time       // other tables: the time on the database's clock
	only map[digest]bool // the messages; nil = all that match the filter
	met  map[digest]bool // for retry_now: those found so far, which are found again if they fail during the act
}

// digest is a short hash of a message or of its UUID, which may be long.
type digest [8]byte

func digestOf(name string) digest {
	sum := sha256.Sum256([]byte(name))
	return digest(sum[:8])
}

// digest includes the version: a message of the queue may since have been enqueued again with different content.
func (p place) digest() digest {
	return digestOf(strconv.FormatInt(p.version, 10) + " " + p.id())
}

// of returns the places that the act may change. For retry_now it remembers all of them, to skip them next time.
func (q asked) of(all []place) []place {
	if q.only == nil && q.met == nil {
		return all
	}
	return slices.DeleteFunc(all, func(p place) bool {
		digest := p.digest()
		leaveOut := q.only != nil && !q.only[digest] || q.met[digest]
		if q.met != nil {
			q.met[digest] = true
		}
		return leaveOut
	})
}

const uncounted = "more" // instead of the list of messages

// tried encodes it as a Result.Preview.
func (q asked) tried(in Table) string {
	only := uncounted
	if q.only != nil {
		all := make([]byte, 0, len(q.only)*len(digest{}))
		for d := range q.only {
			all = append(all, d[:]...)
		}
		only = base64.RawURLEncoding.EncodeToString(all)
	}
	return fmt.Sprintf("%s.%d.%d.%s", in, q.upto, q.at.UnixMicro(), only)
}

// parsePreview decodes a Result.Preview.
func parsePreview(in Table, s string) (q asked, err error) {
	wrong := invalid("admin: Action.Preview is not the Result.Preview of a dry run in the %s", in)
	parts := strings.Split(s, ".")
	if len(parts) != 4 || parts[0] != in.String() {
		return q, wrong
	}
	micros, err := strconv.ParseInt(parts[2], 10, 64)
	if err != nil {
		return q, wrong
	}
	if q.upto, err = strconv.ParseInt(parts[1], 10, 64); err != nil {
		return q, wrong
	}
	if q.at = time.UnixMicro(micros); in == Outbox {
		q.at = time.Time{}
	}
	if parts[3] == uncounted {
		if q.upto == 0 && q.at.IsZero() { // the act would be unbounded
			return q, wrong
		}
		return q, nil
	}
	all, err := base64.RawURLEncoding.DecodeString(parts[3])
	if err != nil || len(all)%len(digest{}) != 0 {
		return q, wrong
	}
	q.only = make(map[digest]bool, len(all)/len(digest{}))
	for ; len(all) > 0; all = all[len(digest{}):] {
		q.only[digest(all[:len(digest{})])] = true
	}
	return q, nil
}
