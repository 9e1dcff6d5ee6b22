package ui

import (
	"net/http"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/summary"
)

// findPage has the results of a search so far.
type findPage struct {
	What     string
	List     []foundMessage
	Progress admin.Progress
	Next     string
}

type foundMessage struct {
	admin.Message
	Level, Table, Owner string
	Since               time.Time
	DeadLetter          bool // it is the dead letter of the message searched for
}

func (rq *request) find() error {
	q := rq.r.URL.Query()
	p := &findPage{What: strings.TrimSpace(q.Get("q"))}
	if p.What == "" {
		return rq.show(http.StatusOK, "find", p)
	}
	list, err := rq.admin.Find(rq.r.Context(), p.What, admin.Page{Limit: pageOf, After: q.Get("page")})
	if err != nil {
		return err
	}
	p.Progress = list.Progress
	if list.Next != "" {
		p.Next = to("find", "q", p.What, "page", list.Next)
	}
	for _, m := range list.Messages {
		p.List = append(p.List, foundMessage{
			Message: m, Level: levels[m.State], Table: m.In.String(), Owner: ownerOf(m.In), Since: summary.Since(&m),
			DeadLetter: m.UUID != p.What && m.Metadata["uuid_poisoned"] == p.What,
		})
	}
	return rq.show(http.StatusOK, "find", p)
}

// findOf returns the text for the search field of a page.
func findOf(data any) string {
	if p, ok := data.(*findPage); ok {
		return p.What
	}
	return ""
}
