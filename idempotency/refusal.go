package idempotency

import (
	"encoding/json"
	"net/http"
)

// refusal is a response of the middleware itself, with a text for the client.
type refusal struct {
	status int
	title  string // default: the status text
	error
}

func (r refusal) Unwrap() error { return r.error }

// retryAfter is the Retry-After header, in seconds.
const retryAfter = "1"

// problem is an RFC 9457 problem.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
}

func (h *handler) refuse(w http.ResponseWriter, no refusal) {
	p := problem{Type: "about:blank", Title: no.title, Status: no.status}
	if no.error != nil {
		p.Detail = no.Error()
	}
	if p.Title == "" {
		p.Title = http.StatusText(no.status)
	}
	if no.status == http.StatusServiceUnavailable || no.status == http.StatusConflict {
		w.Header().Set("Retry-After", retryAfter)
	}
	body, _ := json.Marshal(p) // cannot fail
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	send(w, no.status, append(body, '\n'))
}
