package text

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestErrorsOfDecodersWithoutTheirInput: the error keeps its text, without the input that it quotes.
func TestErrorsOfDecodersWithoutTheirInput(t *testing.T) {
	var to struct {
		Amount int8
		At     time.Time
	}
	parse := func(err error) error { return err }
	_, number := strconv.ParseInt("4111-1111", 10, 64)
	_, moment := time.Parse(time.RFC3339, `4111 "1111" 'x`)
	for _, c := range []struct {
		err  error
		want string
	}{
		{
			parse(json.Unmarshal([]byte(`{"amount": 4111}`), &to)),
			"json: cannot unmarshal number … into Go struct field .Amount of type int8",
		},
		{
			parse(json.Unmarshal([]byte(`{"amount": -4.1e11}`), &to)),
			"json: cannot unmarshal number … into Go struct field .Amount of type int8",
		},
		{parse(json.Unmarshal([]byte(`{4111`), &to)), "invalid character … looking for beginning of object key string"},
		{parse(json.Unmarshal([]byte(`{"at": "4111"}`), &to)), "parsing time … as …: cannot parse … as …"},
		{parse(xml.Unmarshal([]byte(`<a>4111</secret>`), &to)), "XML syntax error on line …: element … closed by …"},
		{number, "strconv.ParseInt: parsing …: invalid syntax"},
		{moment, "parsing time … as …: cannot parse … as …"},
		{errors.New("no ID in it"), "no ID in it"},
		{errors.New(`it begins with "4111`), "it begins with …"},
		{errors.New("bytes `4111 1111` of ä"), "bytes … of ä"},
	} {
		if got := WithoutQuotes(c.err); got != c.want || strings.Contains(got, "4111") {
			t.Errorf("%v is now %s", c.err, got)
		}
	}
}
