package idempotency

import (
	"bytes"
	"maps"
	"net/http"
	"strconv"
	"strings"
)

// HeaderReplayed is the response header that is "true" in a replayed response.
const HeaderReplayed = "Idempotent-Replayed"

const contentType = "Content-Type"

// response is a stored response.
type response struct {
	status int
	header []byte // raw bytes, because header values need not be UTF-8
	body   []byte
}

// storable reports whether a response is final. After any other response the next attempt may have another outcome.
func storable(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusConflict,
		http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status < 500
}

// dropped lists headers about a moment or a connection, and headers with secrets.
var dropped = []string{
	"Set-Cookie", "Date",
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te",
	"Trailer", "Transfer-Encoding", "Upgrade",
	"Content-Length", // set again on replay
	"Traceparent", "Tracestate", "Traceresponse", "Baggage", "Server-Timing",
	"X-Request-Id", "X-Correlation-Id", "X-Trace-Id", "X-Amzn-Trace-Id", "X-Cloud-Trace-Context", "B3",
	HeaderReplayed,

	// Secrets, which would stay in the table for Config.Retention.
	"Authorization", "Authentication-Info", "Proxy-Authentication-Info", "X-Auth-Token", "X-Access-Token",
	"X-Refresh-Token",
	"X-Session-Token", "X-Session-Id", "X-Csrf-Token", "X-Xsrf-Token", "X-Api-Key", "X-Amz-Security-Token",
}

// droppedPrefixes are prefixes of more such headers.
var droppedPrefixes = []string{"Access-Control-", "X-B3-", http.TrailerPrefix}

// dropsOf returns a set of canonical names.
func dropsOf(more []string) map[string]bool {
	drops := map[string]bool{}
	for _, names := range [][]string{dropped, more} {
		for _, name := range names {
			drops[http.CanonicalHeaderKey(name)] = true
		}
	}
	return drops
}

// responseOf returns the part of a recorded response that is stored, or errTooLarge if it exceeds limit.
func responseOf(w *recorder, drops map[string]bool, limit int) (response, error) {
	header := w.own()
	for _, names := range header["Connection"] { // hop-by-hop too
		for name := range strings.SplitSeq(names, ",") {
			header.Del(strings.TrimSpace(name))
		}
	}
	maps.DeleteFunc(header, func(name string, _ []string) bool {
		for _, prefix := range droppedPrefixes {
			if strings.HasPrefix(name, prefix) {
				return true
			}
		}
		return drops[http.CanonicalHeaderKey(name)]
	})
	if values, set := w.sent[contentType]; set && len(values) == 0 {
		header.Set(contentType, "") // the handler suppressed the content type, even the one that net/http detects
	}
	var lines bytes.Buffer
	_ = header.Write(&lines)
	if lines.Len()+w.body.Len() > limit {
		return response{}, errTooLarge
	}
	return response{w.status, lines.Bytes(), w.body.Bytes()}, nil
}

// replay sends a stored response. Outer middlewares have set the headers that are not stored.
func (a response) replay(w http.ResponseWriter) {
	header := http.Header{}
	for line := range strings.SplitSeq(string(a.header), "\r\n") {
		if name, value, ok := strings.Cut(line, ": "); ok {
			header.Add(name, value)
		}
	}
	if values := header[contentType]; len(values) == 1 && values[0] == "" {
		header[contentType] = nil
	}
	maps.Copy(w.Header(), header)
	w.Header().Set(HeaderReplayed, "true")
	send(w, a.status, a.body)
}

// send sends a recorded response.
func (w *recorder) send(to http.ResponseWriter) {
	clear(to.Header()) // the handler may have removed headers
	maps.Copy(to.Header(), w.sent)
	send(to, w.status, w.body.Bytes())
}

func send(w http.ResponseWriter, status int, body []byte) {
	w.Header().Del("Content-Length")
	w.Header().Del("Trailer") // no trailers follow: the length is known
	if hasBody(status) {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(status)
	if len(body) > 0 {
		_, _ = w.Write(body) // if the client is gone, a repeated request gets the response
	}
}
