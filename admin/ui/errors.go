package ui

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"sync"

	"github.com/millrace-go/watermill-outbox/admin"
)

// errorPage lists dead and failing messages by error.
type errorPage struct {
	In     admin.Table
	Tabs   []tab
	Groups []group
	Done   *done
}

// tab is one of several views.
type tab struct {
	Name, Link string
	Count      string
	On         bool
}

// group is an error group and its acts.
type group struct {
	admin.ErrorGroup
	Dead, Failing admin.Count
	Share         int // percentage of the largest group
	Link          string
	Acts          []offer
}

func (rq *request) errors() error {
	f, err := parseFilter(rq.r.URL.Query())
	if err != nil {
		return err
	}
	byID, states := map[string]*group{}, []admin.State{admin.Dead, admin.Failing}
	var reading sync.WaitGroup
	lists, errs := make([][]admin.ErrorGroup, len(states)), make([]error, len(states))
	for i, state := range states {
		reading.Go(func() {
			lists[i], errs[i] = rq.admin.ErrorGroups(rq.r.Context(), admin.Filter{In: f.In, States: []admin.State{state}})
		})
	}
	reading.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for i, list := range lists {
		for _, e := range list {
			addGroup(byID, e, states[i])
		}
	}
	p := &errorPage{In: f.In, Tabs: tableTabs("errors", f.In)}
	for _, g := range byID {
		p.Groups = append(p.Groups, *g)
	}
	slices.SortFunc(p.Groups, func(x, y group) int {
		return cmp.Or(cmp.Compare(y.Count.N, x.Count.N), y.Last.Compare(x.Last), cmp.Compare(x.ID, y.ID))
	})
	for i := range p.Groups {
		p.Groups[i].finish(f.In, p.Groups[0].Count.N, rq.access)
	}
	if p.Done, err = rq.done(); err != nil {
		return err
	}
	return rq.show(http.StatusOK, "errors", p)
}

// addGroup merges the groups of dead and failing messages with the same error.
func addGroup(byID map[string]*group, e admin.ErrorGroup, state admin.State) {
	g := byID[e.ID]
	if g == nil {
		g = &group{ErrorGroup: e}
		g.Count = admin.Count{}
		byID[e.ID] = g
	}
	if state == admin.Dead {
		g.Dead = e.Count
	} else {
		g.Failing = e.Count
	}
	g.Count = admin.Count{N: g.Count.N + e.Count.N, More: g.Count.More || e.Count.More}
	if e.First.Before(g.First) {
		g.First = e.First
	}
	if e.Last.After(g.Last) {
		g.Last, g.Example = e.Last, e.Example
	}
	g.Topics = append(g.Topics, e.Topics...)
	slices.Sort(g.Topics)
	g.Topics = slices.Compact(g.Topics)
}

func (g *group) finish(in admin.Table, most int64, access Access) {
	f := admin.Filter{In: in, ErrorGroup: g.ID}
	if g.Share = int(100 * g.Count.N / max(most, 1)); g.Share == 0 {
		g.Share = 1
	}
	var states []admin.State
	if g.Dead.N > 0 {
		states = append(states, admin.Dead)
	}
	if g.Failing.N > 0 {
		states = append(states, admin.Failing)
	}
	f.States = states[:1]
	g.Link = link("messages", f)
	if access.Act {
		f.States = states
		g.Acts = offers(f, "errors")
	}
}

// tableTabs are the three tables.
func tableTabs(page string, on admin.Table) (list []tab) {
	for _, in := range []admin.Table{admin.Outbox, admin.Inbox, admin.Queue} {
		list = append(list, tab{Name: titles[in], Link: link(page, admin.Filter{In: in}), On: in == on})
	}
	return list
}

var titles = map[admin.Table]string{admin.Outbox: "Outbox", admin.Inbox: "Inbox", admin.Queue: "Queue"}
