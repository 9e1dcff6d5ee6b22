package idempotency

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"time"
)

var (
	errStreaming = fmt.Errorf("idempotency: streaming is not supported: the response is sent when its transaction is "+
		"committed: serve streams outside this middleware: %w", http.ErrNotSupported)
	errTooLarge = errors.New("response larger than Config.MaxResponse: nothing was committed: respond with a link to " +
		"the large content, or raise it")
)

// recorder is the http.ResponseWriter of one call of the handler. It keeps the response in memory. The handler sees the
// headers that outer middlewares have set and can change them.
type recorder struct {
	before http.Header // headers set by outer middlewares
	header http.Header // headers that the handler sees and changes
	sent   http.Header // headers at WriteHeader
	status int         // 0 until WriteHeader
	body   bytes.Buffer
	limit  int
	failed error // why the response cannot be sent
	out    *http.ResponseController
}

func newRecorder(before http.Header, limit int, out *http.ResponseController) *recorder {
	return &recorder{before: before.Clone(), header: cloned(before), limit: limit, out: out}
}

func cloned(h http.Header) http.Header {
	if h == nil {
		return http.Header{}
	}
	return h.Clone()
}

// Header returns the response header.
func (w *recorder) Header() http.Header { return w.header }

// WriteHeader fixes the status and the header. As in net/http, an invalid status panics. Informational statuses are not
// sent.
func (w *recorder) WriteHeader(status int) {
	switch {
	case status < 100 || status > 999:
		panic(fmt.Sprintf("invalid WriteHeader code %v", status))
	case w.status != 0:
		return
	case status == http.StatusSwitchingProtocols:
		w.failed = errStreaming
		return
	case status < 200:
		return
	}
	w.status, w.sent = status, w.header.Clone()
}

// Write adds to the body. It fails if the body exceeds Config.MaxResponse, or if the status allows no body.
func (w *recorder) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	switch {
	case w.failed != nil:
		return 0, w.failed
	case !hasBody(w.status):
		return 0, http.ErrBodyNotAllowed
	case w.body.Len()+len(p) > w.limit:
		w.failed = errTooLarge
		return 0, w.failed
	}
	return w.body.Write(p)
}

// FlushError returns an error instead of sending an uncommitted response. Flush is missing because it could not return
// an error.
func (*recorder) FlushError() error { return errStreaming }

// Hijack returns an error instead of the connection.
func (*recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, errStreaming }

// SetWriteDeadline sets the connection's deadline.
func (w *recorder) SetWriteDeadline(deadline time.Time) error {
	return w.out.SetWriteDeadline(deadline)
}

func hasBody(status int) bool {
	return status != http.StatusNoContent && status != http.StatusNotModified
}

// end is called when the handler has returned. If it wrote nothing, the status is 200.
func (w *recorder) end() error {
	w.WriteHeader(http.StatusOK)
	return w.failed
}

// own returns the header without the entries that existed before the handler was called.
func (w *recorder) own() http.Header {
	own := w.sent.Clone()
	maps.DeleteFunc(own, func(name string, values []string) bool { return slices.Equal(values, w.before[name]) })
	return own
}
