package ui

import (
	"html/template"
	"net/url"
	"strconv"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

// view is the data of each template.
type view struct {
	Title, Page string
	Access      Access
	Token       string
	Find        string // the search text
	Now         time.Time
	Data        any
}

// templates are the pages by name, each with the layout around it.
var templates = parse("overview", "errors", "messages", "message", "find", "audit", "act", "problem")

func parse(names ...string) map[string]*template.Template {
	layout := template.Must(template.New("layout.html").Funcs(template.FuncMap{
		"visible": visible, "number": number, "count": count, "rate": rate, "span": span, "ago": ago, "stamp": stamp,
		"size":  text.Size,
		"field": field, "asset": assetURL, "to": to, "escape": url.QueryEscape,
		"iso":      func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"happened": happened,
		"share":    func(part float64) string { return strconv.Itoa(int(part*100)) + " %" },
		"moment":   func(now, t time.Time) moment { return moment{now, t} },
	}).ParseFS(files, "page/layout.html", "page/parts.html"))
	all := map[string]*template.Template{}
	for _, name := range names {
		all[name] = template.Must(template.Must(layout.Clone()).ParseFS(files, "page/"+name+".html"))
	}
	return all
}

// moment is a time as seen from now.
type moment struct{ Now, At time.Time }
