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

// retryAfter is the Retry-After header of a temporary refusal, in seconds.
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
	_, _ = w.Write(body) // it fails only if the caller has gone
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
	_ = e.Encode(body) // it fails only if the caller has gone
}

// query reads the query parameters. An unknown parameter is refused: it is a mistake, and
// ignoring it would give the wrong result.
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

// outpour sends an answer of unknown length. It collects text until there is a portion to
// send. So a short answer goes out whole, and a failure before the first portion becomes a
// problem.
type outpour struct {
	w     http.ResponseWriter
	media string
	out   *patientWriter

	text  []byte
	began bool
	ended func() // limits the time for the rest of the answer
}

const outpourPortion = 64 << 10

func (g *Gateway) newOutpour(w http.ResponseWriter, media string) *outpour {
	return &outpour{w: w, media: media, out: newPatientWriter(w, g.opt.Limits.Write)}
}

// line adds b and a line break.
func (o *outpour) line(ctx context.Context, b []byte) error {
	o.text = append(append(o.text, b...), '\n')
	return o.portion(ctx)
}

// portion sends the collected text if it has the size of a portion.
func (o *outpour) portion(ctx context.Context) error {
	if len(o.text) < outpourPortion {
		return nil
	}
	return o.flush(ctx)
}

// flush sends the collected text at once.
func (o *outpour) flush(ctx context.Context) error {
	o.begin(ctx)
	err := o.out.write(ctx, o.text)
	o.text = o.text[:0]
	return err
}

// begin sends the head and removes the read deadline, as a tail does. At that deadline
// net/http would notice that the caller sends nothing, and end the request's context.
func (o *outpour) begin(ctx context.Context) {
	if o.began {
		return
	}
	o.began = true
	o.ended = o.out.endWith(ctx)
	_ = http.NewResponseController(o.w).SetReadDeadline(time.Time{}) // a connection without deadlines needs no change
	writeHead(o.w, http.StatusOK, o.media)
}

// end ends the answer. Before the first portion it returns the problem. Later it is too late
// for a problem, so a failed answer is cut off, and the reader cannot take it for complete.
func (o *outpour) end(ctx context.Context, err error, p *api.Problem) *api.Problem {
	switch {
	case !o.began && err != nil:
		return p
	case !o.began:
		writeHead(o.w, http.StatusOK, o.media)
		_, _ = o.w.Write(o.text) // it fails only if the caller has gone
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

// cut ends the connection, or the HTTP/2 stream, before the answer's end: with a deadline in
// the past, net/http cannot write the final chunk.
func (o *outpour) cut() {
	_ = http.NewResponseController(o.w).SetWriteDeadline(time.Unix(1, 0)) // it fails only if the connection has gone
}

const (
	writePiece = 16 << 10    // bytes of one write; a reader that takes less within the limit is too slow
	writeGrace = time.Second // time for the last bytes
)

// patientWriter sends to a reader for as long as the reader takes some bytes.
type patientWriter struct {
	w      http.ResponseWriter
	within time.Duration // time within which a piece must be taken

	mu   sync.Mutex
	c    *http.ResponseController
	over bool // the answer is ending, and deadlines must not change
}

var (
	errUnsent = errors.New("the reader cannot be reached")
	errSlow   = errors.New("the reader takes nothing")
)

func newPatientWriter(w http.ResponseWriter, within time.Duration) *patientWriter {
	return &patientWriter{w: w, within: within, c: http.NewResponseController(w)}
}

// endWith limits the current write when the context ends, so that a slow reader does not
// delay the gateway's Close. The caller must call last after the last write: it gives the
// bytes that net/http still sends writeGrace of time, however long the writes before took.
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
		_ = p.c.SetWriteDeadline(time.Now().Add(writeGrace)) // it fails only if the connection has gone
	}
}

// write sends all of b and flushes it.
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

// rest removes the deadline until there is more to write, because on HTTP/2 a deadline ends
// an idle stream too.
func (p *patientWriter) rest() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over {
		_ = p.c.SetWriteDeadline(time.Time{})
	}
}

// piece sends one piece within its time limit. It recognises a timeout by the clock, because
// HTTP/2 reports only that the stream is closed.
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
