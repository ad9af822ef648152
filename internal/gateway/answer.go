package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"tidemill.dev/api"
)

// retryAfter is what a refusal that passes tells the caller to wait, in seconds.
const retryAfter = "1"

func writeProblem(w http.ResponseWriter, p *api.Problem) {
	if p.Status == http.StatusServiceUnavailable || p.Status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", retryAfter)
	}
	write(w, p.Status, api.ProblemType, p)
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	write(w, status, jsonType, body)
}

const jsonType = "application/json"

// writeText writes a body that is JSON already.
func writeText(w http.ResponseWriter, status int, media string, body []byte) {
	writeHead(w, status, media)
	_, _ = w.Write(body) // the caller has gone if it fails
}

func writeHead(w http.ResponseWriter, status int, media string) {
	h := w.Header()
	h.Set("Content-Type", media)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
}

func write(w http.ResponseWriter, status int, media string, body any) {
	writeHead(w, status, media)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	_ = e.Encode(body) // the caller has gone if it fails
}

// query reads the parameters of an address. Another than those known is a slip,
// and a slip that is passed over shows the wrong things.
func (r *request) query(known []string) (url.Values, *api.Problem) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, invalidRequest("the query of the address cannot be read: " + err.Error())
	}
	for name, all := range values {
		switch {
		case !slices.Contains(known, name):
			return nil, badParameter(name, "there is no such parameter; there are "+strings.Join(known, ", "))
		case len(all) > 1:
			return nil, badParameter(name, "it is given twice; give it once")
		}
	}
	return values, nil
}

// outpour sends an answer of which nobody knows how long it will be. What there
// is of it is kept until there is a portion, so that a short answer goes out
// whole and a fault that comes before a portion has gone is a problem.
type outpour struct {
	w     http.ResponseWriter
	media string
	out   *patientWriter

	text  []byte
	began bool
	ended func() // bounds what is left to be sent
}

const outpourPortion = 64 << 10

func (g *Gateway) newOutpour(w http.ResponseWriter, media string) *outpour {
	return &outpour{w: w, media: media, out: newPatientWriter(w, g.opt.Limits.Write)}
}

// line adds a line, without its end.
func (o *outpour) line(ctx context.Context, b []byte) error {
	o.text = append(append(o.text, b...), '\n')
	return o.portion(ctx)
}

// portion sends what there is if it is enough to be worth it.
func (o *outpour) portion(ctx context.Context) error {
	if len(o.text) < outpourPortion {
		return nil
	}
	return o.flush(ctx)
}

// flush sends what there is, and at once.
func (o *outpour) flush(ctx context.Context) error {
	o.begin(ctx)
	err := o.out.write(ctx, o.text)
	o.text = o.text[:0]
	return err
}

// begin sends the head. As with a tail, the limits of an answer that is whole
// are undone: net/http would notice at the end of the time for reading that the
// caller sends nothing, and end the request's context.
func (o *outpour) begin(ctx context.Context) {
	if o.began {
		return
	}
	o.began = true
	o.ended = o.out.endWith(ctx)
	_ = http.NewResponseController(o.w).SetReadDeadline(time.Time{}) // a connection that knows none has none
	writeHead(o.w, http.StatusOK, o.media)
}

// end ends the answer, well or not. A problem is for the caller to return; where
// it is too late for one the answer is cut off, so that nobody takes the half
// for the whole.
func (o *outpour) end(ctx context.Context, err error, p *api.Problem) *api.Problem {
	switch {
	case !o.began && err != nil:
		return p
	case !o.began:
		writeHead(o.w, http.StatusOK, o.media)
		_, _ = o.w.Write(o.text) // the caller has gone if it fails
		return nil
	case err == nil && len(o.text) > 0:
		err = o.out.write(ctx, o.text)
	}
	o.ended()
	if err != nil {
		o.cut()
	}
	return nil
}

// cut ends the connection, or the stream of HTTP/2, before the answer's end:
// the chunk that would say so cannot be written any more.
func (o *outpour) cut() {
	_ = http.NewResponseController(o.w).SetWriteDeadline(time.Unix(1, 0)) // one that knows no deadline has gone
}

const (
	writePiece = 16 << 10    // a reader that takes less within the limit is too slow
	writeGrace = time.Second // the last bytes may take so long
)

// patientWriter sends to a reader for as long as he takes something.
type patientWriter struct {
	w      http.ResponseWriter
	within time.Duration // a piece has to be taken

	mu   sync.Mutex
	c    *http.ResponseController
	over bool // the tail is to end, and deadlines stay as they are
}

var (
	errUnsent = errors.New("the reader cannot be reached")
	errSlow   = errors.New("the reader takes nothing")
)

func newPatientWriter(w http.ResponseWriter, within time.Duration) *patientWriter {
	return &patientWriter{w: w, within: within, c: http.NewResponseController(w)}
}

// endWith bounds what is being written when the context ends, so that a slow
// reader does not hold up the gateway's closing. Call what it returns when
// nothing more is written, and last of all: it bounds the little that net/http
// still sends, which has that time for itself, however long it took to come there.
func (p *patientWriter) endWith(ctx context.Context) (last func()) {
	stop := context.AfterFunc(ctx, func() { p.hurry(false) })
	return func() {
		stop()
		p.hurry(true)
	}
}

func (p *patientWriter) hurry(last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over || last {
		p.over = true
		_ = p.c.SetWriteDeadline(time.Now().Add(writeGrace)) // a connection that knows none has gone
	}
}

// write sends all of b, and at once.
func (p *patientWriter) write(ctx context.Context, b []byte) error {
	for len(b) > 0 {
		n := min(len(b), writePiece)
		if err := p.piece(ctx, func() error { _, err := p.w.Write(b[:n]); return err }); err != nil {
			return err
		}
		b = b[n:]
	}
	if err := p.piece(ctx, p.c.Flush); err != nil {
		return err
	}
	p.rest()
	return nil
}

// rest lets time pass until there is more to write: on HTTP/2 a deadline ends
// what has nothing to write too.
func (p *patientWriter) rest() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over {
		_ = p.c.SetWriteDeadline(time.Time{})
	}
}

// piece gives a piece its time. That the time was up is told by the clock:
// HTTP/2 only says that the stream is closed.
func (p *patientWriter) piece(ctx context.Context, send func() error) error {
	began := time.Now()
	if err := p.wait(ctx, began); err != nil {
		return err
	}
	err := send()
	switch {
	case err == nil:
		return nil
	case time.Since(began) >= p.within:
		return fmt.Errorf("%w: %w", errSlow, err)
	}
	return fmt.Errorf("%w: %w", errUnsent, err)
}

func (p *patientWriter) wait(ctx context.Context, now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over || ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := p.c.SetWriteDeadline(now.Add(p.within)); err != nil {
		return fmt.Errorf("%w: %w", errUnsent, err)
	}
	return nil
}
