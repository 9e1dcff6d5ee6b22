package ui

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/millrace-go/watermill-outbox/admin"
)

// messagePage is a page of a list.
type messagePage struct {
	Filter       admin.Filter
	Tables, Tabs []tab
	State        string
	Narrow       bool
	List         []admin.Message
	Progress     admin.Progress
	Next, First  string // other pages of the list
	Chosen, All  []offer
	Same         string // the filter, for a form
	Owner        string
	Done         *done
}

// pageOf is the number of messages on a page.
const pageOf = 50

func (rq *request) messages() error {
	q := rq.r.URL.Query()
	f, err := parseFilter(q)
	if err != nil {
		return err
	}
	if len(f.States) == 0 {
		f.States = []admin.State{admin.Dead}
	}
	f.States, f.All = f.States[:1], false
	list, err := rq.admin.List(rq.r.Context(), f, admin.Page{Limit: pageOf, After: q.Get("page")})
	if err != nil {
		return err
	}
	p := &messagePage{
		Filter: f, Tables: tableTabs("messages", f.In), State: string(f.States[0]), Narrow: narrow(f), List: list.Messages,
		Progress: list.Progress, Owner: ownerOf(f.In),
	}
	if list.Next != "" {
		p.Next = link("messages", f, "page", list.Next)
	}
	if q.Get("page") != "" {
		p.First = link("messages", f)
	}
	counts := rq.counts(f.In)
	for _, state := range f.In.States() {
		of := f
		of.States = []admin.State{state}
		t := tab{Name: stateTitles[state], Link: link("messages", of), On: state == f.States[0]}
		if c, ok := counts[state]; ok && !p.Narrow {
			t.Count = count(c)
		}
		p.Tabs = append(p.Tabs, t)
	}
	if rq.access.Act {
		p.Chosen, p.All, p.Same = offers(f, "messages"), offers(f, "messages"), values(f).Encode()
	}
	if p.Done, err = rq.done(); err != nil {
		return err
	}
	return rq.show(http.StatusOK, "messages", p)
}

var stateTitles = map[admin.State]string{
	admin.Dead: "Dead", admin.Failing: "Failing", admin.Ready: "Ready", admin.Delayed: "Delayed",
	admin.Done: "Done", admin.Discarded: "Discarded", admin.Seen: "Seen",
}

// counts returns the recently read number of messages by state: a list does not wait for a new count.
func (rq *request) counts(in admin.Table) map[admin.State]admin.Count {
	s := rq.watch.recent()
	if s == nil {
		return nil
	}
	if in == admin.Inbox {
		m := map[admin.State]admin.Count{admin.Dead: {}, admin.Failing: {}}
		for _, c := range s.Inbox {
			for state, n := range map[admin.State]admin.Count{admin.Dead: c.Dead, admin.Failing: c.Failing} {
				m[state] = admin.Count{N: m[state].N + n.N, More: m[state].More || n.More}
			}
		}
		return m
	}
	all := total(s.Topics)
	if in == admin.Queue {
		all = total(s.Queue)
	}
	return map[admin.State]admin.Count{
		admin.Dead: all.Dead, admin.Failing: all.Failing, admin.Ready: all.Ready, admin.Delayed: all.Delayed,
	}
}

var levels = map[admin.State]string{
	admin.Dead: "bad", admin.Failing: "warn", admin.Ready: "ok", admin.Delayed: "idle", admin.Done: "ok",
	admin.Discarded: "idle", admin.Seen: "idle",
}

// messageView is one message.
type messageView struct {
	admin.Message
	Level    string
	Owner    string
	Acts     []offer
	Metadata []pair
	Timeline []admin.Event
	Since    string   // the act that restarted the count of attempts; "" = none
	Payload  *preview // nil = not shown
	Hidden   bool     // the user has no access to payloads
	Done     *done
}

func (rq *request) message() error {
	q := rq.r.URL.Query()
	f, err := parseFilter(q)
	if err != nil {
		return err
	}
	if len(f.IDs) != 1 {
		return unclear(errors.New("give the id of one message"))
	}
	v := &messageView{}
	if rq.access.Payloads && f.In != admin.Inbox {
		m, err := rq.admin.Get(rq.r.Context(), f.In, f.IDs[0])
		if err != nil {
			return err
		}
		p := previewOf(m.Payload)
		v.Message, v.Payload = *m, &p
	} else { // a list reads no payloads
		list, err := rq.admin.List(rq.r.Context(), admin.Filter{In: f.In, IDs: f.IDs}, admin.Page{})
		if err != nil {
			return err
		}
		if len(list.Messages) == 0 {
			return fmt.Errorf("%w: %s", admin.ErrNotFound, f.In)
		}
		v.Message, v.Hidden = list.Messages[0], f.In != admin.Inbox
	}
	for _, name := range slices.Sorted(maps.Keys(v.Message.Metadata)) {
		v.Metadata = append(v.Metadata, pair{name, v.Message.Metadata[name]})
	}
	if v.Timeline, err = rq.admin.Timeline(rq.r.Context(), f.In, f.IDs[0]); err != nil {
		return err
	}
	for _, e := range v.Timeline {
		switch e.What {
		case "written":
			v.CreatedAt = e.At // an act that requeues a message of the inbox resets the column
		case "requeue", "redrive":
			v.Since = e.What
		}
	}
	v.Level, v.Owner = levels[v.State], ownerOf(v.In)
	if rq.access.Act {
		v.Acts = offers(admin.Filter{In: f.In, IDs: f.IDs, States: []admin.State{v.State}}, "message")
		if v.Key == "" {
			v.Acts = slices.DeleteFunc(v.Acts, func(o offer) bool { return o.Name == "skip" })
		}
	}
	if v.Done, err = rq.done(); err != nil {
		return err
	}
	return rq.show(http.StatusOK, "message", v)
}
