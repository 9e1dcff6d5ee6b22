package ui

import (
	"net/url"
	"testing"
)

// FuzzFilter: a link made from a query's filter means the same filter.
func FuzzFilter(f *testing.F) {
	for _, s := range []string{
		"", "in=queue&state=dead&topic=a%26b", "id=1&id=2&all=yes", "after=2006-01-02T15:04&before=2006-01-02",
		"after=2006-01-02T15:04:05Z", "state=nosuch", "in=outbox&error=%00%ff", "after=2006-01-02T15:04:05.5%2B23:59",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, query string) {
		q, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		filter, err := parseFilter(q)
		if err != nil {
			return
		}
		made := values(filter)
		again, err := parseFilter(made)
		if err != nil || values(again).Encode() != made.Encode() || narrow(again) != narrow(filter) {
			t.Errorf("%q means %+v, and its link %q means %+v, %v", query, filter, made.Encode(), again, err)
		}
	})
}
