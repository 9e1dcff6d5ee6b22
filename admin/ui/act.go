package ui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/admin"
)

const (
	maxAct     = 10_000                  // messages that one POST changes
	actTimeout = time.Minute             // for one POST
	dryTimeout = 1500 * time.Millisecond // for counting what it would change
)

// question asks for confirmation of an act.
type question struct {
	Verb    string
	Title   string
	Button  string
	Does    string
	Danger  bool
	Reason  bool
	Words   []pair
	From    string
	Same    string // the filter, for the form
	Back    string
	Count   *admin.Count // nil for topics
	Preview string       // the counted messages: the confirmation covers only these
	Limit   string       // largest number of changes, if there may be more messages
	Found   string       // number found before the time limit
	Nothing bool
}

// act asks for confirmation, or acts.
func (rq *request) act() error {
	if !rq.access.Act {
		return &problem{
			http.StatusForbidden, "Read only", "You have read-only access. Ask the operators of this service for more.",
		}
	}
	q := rq.r.URL.Query()
	if rq.r.Method == http.MethodPost {
		q = rq.r.PostForm
	}
	v := verbOf(q.Get("verb"))
	if v == nil {
		return unclear(fmt.Errorf("unknown action %q", q.Get("verb")))
	}
	f, err := meant(q)
	if err != nil {
		return err
	}
	if v.topic != nil && f.Topic == "" {
		return unclear(errors.New("topic is missing"))
	}
	from := q.Get("from")
	if !slices.Contains([]string{"errors", "messages", "message"}, from) { // it is echoed into a form
		from = ""
	}
	if rq.r.Method == http.MethodPost && q.Get("sure") == "yes" {
		tried := q.Get("preview")
		if v.topic == nil && tried == "" {
			return unclear(errors.New("not confirmed: open the link, and confirm there"))
		}
		return rq.do(v, f, tried, from, q.Get("reason"))
	}
	return rq.ask(v, f, from)
}

// ask shows the effect of an act.
func (rq *request) ask(v *verb, f admin.Filter, from string) error {
	d := &question{
		Verb: v.Name, Does: v.Does[f.In], Danger: v.Danger, Reason: v.Stored != "", Words: words(f), Back: back(from, f),
	}
	d.From, d.Same = from, values(f).Encode()
	if v.topic != nil {
		d.Title, d.Button, d.Words = label(v.Name)+" "+visible(f.Topic)+"?", label(v.Name), []pair{{"Topic", f.Topic}}
		return rq.show(http.StatusOK, "act", d)
	}
	ctx, cancel := context.WithTimeout(rq.r.Context(), dryTimeout)
	defer cancel()
	r, err := rq.operator().Do(ctx, v.Name, admin.Action{Filter: f, DryRun: true})
	switch {
	case err != nil && r.Preview != "" && ctx.Err() != nil && rq.r.Context().Err() == nil:
		r.Matched.More = true // the count is incomplete
	case err != nil:
		return err
	}
	n := count(r.Matched)
	d.Count, d.Nothing, d.Preview = &r.Matched, r.Matched == admin.Count{}, r.Preview
	switch d.Title = fmt.Sprintf("%s %s messages?", label(v.Name), n); {
	case d.Nothing:
		d.Title = "Nothing to do"
	case r.Matched.N == 1 && !r.Matched.More:
		d.Title = label(v.Name) + " 1 message?"
	}
	if d.Button = label(v.Name); r.Matched.N > 1 || r.Matched.More {
		d.Button += " " + n
	}
	if r.Matched.More { // the question names the number that bounds the act
		d.Limit = number(maxAct)
		d.Title, d.Button = fmt.Sprintf("%s the oldest %s messages?", label(v.Name), d.Limit), label(v.Name)+" "+d.Limit
		if r.Matched.N < maxAct { // the time limit came first
			d.Title, d.Button = fmt.Sprintf("%s up to %s messages?", label(v.Name), d.Limit), label(v.Name)+" up to "+d.Limit
			d.Found = number(r.Matched.N)
		}
	}
	return rq.show(http.StatusOK, "act", d)
}

// operator returns the Admin for acts of the user.
func (rq *request) operator() *admin.Admin {
	if rq.access.Actor == "" {
		return rq.admin
	}
	return rq.admin.As(rq.access.Actor)
}

// do acts on the confirmed messages, whether or not the browser waits, and redirects it to the page it came from.
func (rq *request) do(v *verb, f admin.Filter, tried, from, reason string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(rq.r.Context()), actTimeout)
	defer cancel()
	var audit int64
	if v.topic != nil {
		if err := v.topic(rq.operator(), ctx, f.Topic, reason); err != nil {
			return err
		}
		audit = rq.latest(ctx, v.Name, f.Topic)
	} else {
		r, err := rq.operator().Do(ctx, v.Name, admin.Action{
			Filter: f, Preview: tried, Limit: maxAct, Reason: reason,
		})
		if err != nil && (r.AuditID == 0 || ctx.Err() == nil) {
			return err
		}
		audit = r.AuditID // it has the changes made before the time limit
	}
	rq.watch.forget()
	target, _ := url.Parse(back(from, f))
	q := target.Query()
	q.Set("done", fmt.Sprint(audit))
	target.RawQuery = q.Encode()
	rq.w.Header().Set("Location", target.String())
	rq.w.WriteHeader(http.StatusSeeOther)
	return nil
}

// latest finds the audit entry of the latest act on a topic; 0 if too many other acts followed it.
func (rq *request) latest(ctx context.Context, action, topic string) int64 {
	list, _, _ := rq.admin.Audit(ctx, admin.Page{Limit: 10})
	i := slices.IndexFunc(list, func(e admin.AuditEntry) bool { return e.Action == action && e.Filter.Topic == topic })
	if i < 0 {
		return 0
	}
	return list[i].ID
}

// back is the page that an act came from: always one of ours, whatever the form contains.
func back(from string, f admin.Filter) string {
	f.All = false
	switch from {
	case "errors":
		return link("errors", admin.Filter{In: f.In})
	case "messages":
		f.IDs = nil
		return link("messages", f)
	case "message":
		return link("message", admin.Filter{In: f.In, IDs: f.IDs})
	}
	return "./"
}

// meant returns the filter of an act. In a form it is one field, URL-encoded, because browsers change line ends in
// fields. On a list it selects the checked messages.
func meant(q url.Values) (f admin.Filter, err error) {
	from := q
	if q.Has("filter") {
		if from, err = url.ParseQuery(q.Get("filter")); err != nil {
			return f, unclear(err)
		}
	}
	if f, err = parseFilter(from); err != nil || q.Get("choice") != "yes" {
		return f, err
	}
	for _, escaped := range q["chosen"] {
		id, err := url.QueryUnescape(escaped)
		if err != nil {
			return f, unclear(err)
		}
		f.IDs = append(f.IDs, id)
	}
	if len(f.IDs) == 0 {
		return f,
			unclear(errors.New("no message is selected: select some in the list, or use the buttons for all that match"))
	}
	return f, nil
}
