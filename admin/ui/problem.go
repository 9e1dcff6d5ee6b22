package ui

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/admin"
)

// problem is a response that shows the problem and the next step.
type problem struct {
	status          int
	Heading, Advice string
}

func (p *problem) Error() string { return p.Heading }

// unclear is the response to an invalid request.
func unclear(err error) error {
	return &problem{status: http.StatusBadRequest, Heading: "Invalid request", Advice: err.Error()}
}

// explain turns an error into a problem. Errors of the database go only to the log.
func explain(err error) *problem {
	var p *problem
	switch {
	case errors.As(err, &p):
		return p
	case errors.Is(err, admin.ErrNotFound):
		return &problem{
			http.StatusNotFound, "Message not found",
			"It was published or handled, and deleted after its retention; or it never existed.",
		}
	case errors.Is(err, admin.ErrNoDeadLetter):
		return &problem{
			http.StatusConflict, "The dead letters are not in the outbox any more",
			"They were deleted after its retention. Redrive them from the broker's dead-letter topic.",
		}
	case errors.Is(err, admin.ErrInvalid), errors.Is(err, admin.ErrEmptyFilter):
		return unclear(err).(*problem)
	case errors.Is(err, admin.ErrNoActor):
		return &problem{
			http.StatusForbidden, "No actor",
			"Authorize allows changes, but names no Actor for the audit log, and admin.Config has none either.",
		}
	case errors.Is(err, context.DeadlineExceeded):
		return &problem{
			http.StatusGatewayTimeout, "Timed out", "Changes made so far are in the audit log. Narrow the filter, or try again.",
		}
	}
	return nil
}

// fail responds with the problem.
func (rq *request) fail(err error) {
	p := explain(err)
	if p == nil {
		rq.logFailure(err)
		p = &problem{
			http.StatusServiceUnavailable, "The database does not respond", "It may be down or busy, its tables may not be " +
				"migrated, or the role of this page may lack a grant. See the log.",
		}
	}
	if err := rq.show(p.status, "problem", p); err != nil {
		http.Error(rq.w, p.Heading, p.status)
	}
}

// logFailure logs why the database did not respond, unless the client has gone.
func (rq *request) logFailure(err error) {
	if rq.r.Context().Err() == nil {
		// Cause: the database, or the tables are not migrated.
		// Cure: run outboxctl doctor as the role of the page.
		rq.logger.Error("database did not respond to the page", fmt.Errorf("%q", err),
			watermill.LogFields{"page": fmt.Sprintf("%q", rq.page)})
	}
}
