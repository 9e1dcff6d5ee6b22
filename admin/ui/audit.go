package ui

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/millrace-go/watermill-outbox/admin"
)

// auditPage is a page of the audit log.
type auditPage struct {
	Entries     []entry
	Next, First string
}

type entry struct {
	admin.AuditEntry
	Title string
	Words []pair
	Open  bool // in progress, or its end could not be recorded
}

func (rq *request) audit() error {
	after := rq.r.URL.Query().Get("page")
	list, next, err := rq.admin.Audit(rq.r.Context(), admin.Page{Limit: pageOf, After: after})
	if err != nil {
		return err
	}
	p := &auditPage{}
	for _, e := range list {
		p.Entries = append(p.Entries, newEntry(e))
	}
	if next != "" {
		p.Next = link("audit", admin.Filter{}, "page", next)
	}
	if after != "" {
		p.First = "audit"
	}
	return rq.show(http.StatusOK, "audit", p)
}

func newEntry(e admin.AuditEntry) entry {
	own := entry{e, visible(e.Action), words(e.Filter), e.EndedAt.IsZero()}
	if v := verbOf(e.Action); v != nil {
		own.Title = v.Past
	}
	for i, p := range own.Words {
		if e.Action == "clean" && p.Name == "Written before" {
			own.Words[i].Name = "Done before"
		}
	}
	return own
}

// done is the result of an act, from the audit log.
type done struct {
	entry
	Again string // link that repeats the act, if messages may be left
}

// done describes the act that redirected the browser here. It reads the log, because anybody can forge a query.
func (rq *request) done() (*done, error) {
	id, err := strconv.ParseInt(rq.r.URL.Query().Get("done"), 10, 64)
	if err != nil || id <= 0 {
		return nil, nil
	}
	e, err := rq.entry(rq.r.Context(), id)
	if e == nil || err != nil || time.Since(e.At) > time.Hour {
		return nil, err
	}
	d := &done{entry: newEntry(*e)}
	if rq.access.Act && e.Result.Touched >= maxAct && verbOf(e.Action) != nil {
		d.Again = actLink(e.Action, e.Filter, "from", rq.page)
	}
	return d, nil
}

// entry reads one entry of the audit log; nil if it does not exist.
func (rq *request) entry(ctx context.Context, id int64) (*admin.AuditEntry, error) {
	list, _, err := rq.admin.Audit(ctx, admin.Page{Limit: 1, After: strconv.FormatInt(id+1, 10)})
	if err != nil || len(list) == 0 || list[0].ID != id {
		return nil, err
	}
	return &list[0], nil
}
