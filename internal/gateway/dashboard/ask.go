package dashboard

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev/api"
)

// visit is one request for a page, with its caller.
type visit struct {
	*http.Request
	d      *Dashboard
	caller api.Caller
	found  []hit    // results of a search; nil before it
	missed []string // reasons why a search or a selection is not complete
}

// query returns a parameter of the page's URL, or of its form.
func (v *visit) query(name string) string { return v.FormValue(name) }

// pick returns those parameters of the page's URL that are not empty, for a request to the API.
func (v *visit) pick(names ...string) url.Values {
	q := url.Values{}
	for _, name := range names {
		if value := v.FormValue(name); value != "" {
			q.Set(name, value)
		}
	}
	return q
}

// get sends a GET request to the API and decodes the answer. The error is an *api.Problem if the API
// refuses the request.
func get[T any](v *visit, path string, query url.Values) (answer T, err error) {
	return decode[T](v.ask(http.MethodGet, path, query, nil))
}

func decode[T any](status int, body []byte, err error) (answer T, _ error) {
	if err != nil {
		return answer, err
	}
	if err := problemOf(status, body); err != nil {
		return answer, err
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return answer, fmt.Errorf("read the answer of the API: %w", err)
	}
	return answer, nil
}

// problemOf returns the problem of an answer; nil if the answer is a success.
func problemOf(status int, body []byte) error {
	if status < http.StatusBadRequest {
		return nil
	}
	p := new(api.Problem)
	if json.Unmarshal(body, p) != nil || p.Title == "" {
		p = &api.Problem{Title: http.StatusText(status), Detail: "the API gave no reason"}
	}
	p.Status = status
	return p
}

// ask calls the API in-process as the visitor.
func (v *visit) ask(method, path string, query url.Values, body any, headers ...string) (status int, answer []byte, err error) {
	return v.askInto(&recorder{header: http.Header{}, most: maxAnswer}, method, path, query, body, headers...)
}

func (v *visit) askInto(w *recorder, method, path string, query url.Values, body any, headers ...string) (status int, answer []byte, err error) {
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return 0, nil, fmt.Errorf("write a request to the API: %w", err)
		}
		content = bytes.NewReader(text)
	}
	to := &url.URL{Path: path, RawQuery: query.Encode()}
	r, err := http.NewRequestWithContext(v.Context(), method, to.RequestURI(), content)
	if err != nil {
		return 0, nil, fmt.Errorf("make a request to the API: %w", err)
	}
	r.RequestURI, r.Host, r.RemoteAddr, r.TLS = to.RequestURI(), v.Host, v.RemoteAddr, v.TLS
	for _, name := range []string{"Authorization", "Origin", "Sec-Fetch-Site", "Traceparent"} {
		if value := v.Header.Get(name); value != "" {
			r.Header.Set(name, value)
		}
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	v.d.opt.API.ServeHTTP(w, r)
	return w.status, w.body.Bytes(), w.err
}

// atOnce calls a function n times at once, and waits for all calls. A panic of one goes on in the caller, because the
// gateway recovers from panics of its requests alone, and not from those of other goroutines.
func atOnce(n int, do func(i int)) {
	var (
		calls sync.WaitGroup
		cause atomic.Pointer[any]
	)
	for i := range n {
		calls.Go(func() {
			defer func() {
				if c := recover(); c != nil {
					cause.Store(&c)
				}
			}()
			do(i)
		})
	}
	calls.Wait()
	if c := cause.Load(); c != nil {
		panic(*c)
	}
}

// recorder keeps an answer of the API.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
	most   int // limit of body
	err    error
}

// maxAnswer limits the answers that a page is made from.
const maxAnswer = 32 << 20

var errTooLong = errors.New("the API's answer is too long for a page: narrow the filter, or use the command line")

func (w *recorder) Header() http.Header { return w.header }

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status = status
	}
}

func (w *recorder) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if room := w.most - w.body.Len(); len(b) > room {
		w.body.Write(b[:room])
		w.err = errTooLong
		return room, errTooLong
	}
	return w.body.Write(b)
}

// Flush lets handlers send portions.
func (*recorder) Flush() {}

// SetReadDeadline does nothing, because no connection belongs to a recorder.
func (*recorder) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline does nothing either. Without it, answers of unknown length would be cut off.
func (*recorder) SetWriteDeadline(time.Time) error { return nil }

// isNotFound reports whether the API has no such object.
func isNotFound(err error) bool {
	var p *api.Problem
	return errors.As(err, &p) && p.Status == http.StatusNotFound
}

// isNotImplemented reports whether this gateway lacks the part that a request needs.
func isNotImplemented(err error) bool {
	var p *api.Problem
	return errors.As(err, &p) && p.Status == http.StatusNotImplemented
}
