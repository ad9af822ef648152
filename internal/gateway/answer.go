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
	setRetryAfter(w, p.Status)
	write(w, p.Status, api.ProblemType, p)
}

// setRetryAfter tells a caller when to send a request again that may succeed later.
func setRetryAfter(w http.ResponseWriter, status int) {
	if status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", retryAfter)
	}
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	write(w, status, jsonType, body)
}

const jsonType = "application/json"

// writeText writes a body that is JSON already.
func writeText(w http.ResponseWriter, status int, media string, body []byte) {
	writeHead(w, status, media)
	_, _ = w.Write(body) // fails only if the caller has disconnected
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
	_ = e.Encode(body) // fails only if the caller has disconnected
}

// parseQuery reads the query parameters. An unknown parameter is refused, because it is a mistake,
// and the result without it would be wrong.
func (r *request) parseQuery(known []string) (url.Values, *api.Problem) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, invalidRequest("the query of the URL cannot be read: " + err.Error())
	}
	for name, all := range values {
		switch {
		case !slices.Contains(known, name):
			return nil, badParameter(name, "there is no such parameter; known here: "+strings.Join(known, ", "))
		case len(all) > 1:
			return nil, badParameter(name, "it is given twice; leave one out")
		}
	}
	return values, nil
}

// streamedAnswer sends an answer of unknown length in portions. So a short answer is sent as a
// whole, and an error before the first portion becomes a problem.
type streamedAnswer struct {
	w     http.ResponseWriter
	media string
	out   *patientWriter

	text  []byte
	began bool
	ended func() // limits the time for the rest of the answer
}

const outpourPortion = 64 << 10

func (g *Gateway) newOutpour(w http.ResponseWriter, media string) *streamedAnswer {
	return &streamedAnswer{w: w, media: media, out: newPatientWriter(w, g.opt.Limits.Write)}
}

// writeLine adds b and a line break.
func (o *streamedAnswer) writeLine(ctx context.Context, b []byte) error {
	o.text = append(append(o.text, b...), '\n')
	return o.sendPortion(ctx)
}

// sendPortion sends the collected text if the text has the size of a portion.
func (o *streamedAnswer) sendPortion(ctx context.Context) error {
	if len(o.text) < outpourPortion {
		return nil
	}
	return o.flush(ctx)
}

// flush sends the collected text at once.
func (o *streamedAnswer) flush(ctx context.Context) error {
	o.sendHead(ctx)
	err := o.out.write(ctx, o.text)
	o.text = o.text[:0]
	return err
}

// sendHead sends the head and removes the read deadline, as a tail does. Otherwise net/http would
// end the request's context at that deadline, because the caller sends nothing.
func (o *streamedAnswer) sendHead(ctx context.Context) {
	if o.began {
		return
	}
	o.began = true
	o.ended = o.out.endWith(ctx)
	_ = http.NewResponseController(o.w).SetReadDeadline(time.Time{}) // a connection without deadlines needs no change
	writeHead(o.w, http.StatusOK, o.media)
}

// finish ends the answer. If no portion has been sent, finish returns the problem. After a portion,
// a failed answer is cut off, so that the reader does not take the answer for complete.
func (o *streamedAnswer) finish(ctx context.Context, err error, p *api.Problem) *api.Problem {
	switch {
	case !o.began && err != nil:
		return p
	case !o.began:
		writeHead(o.w, http.StatusOK, o.media)
		_, _ = o.w.Write(o.text) // fails only if the caller has disconnected
		return nil
	case err == nil && len(o.text) > 0:
		err = o.out.write(ctx, o.text)
	}
	o.ended()
	if err != nil {
		o.abort()
	}
	return nil
}

// abort ends the connection, or the HTTP/2 stream, before the answer is complete. Its deadline in
// the past keeps net/http from writing the final chunk.
func (o *streamedAnswer) abort() {
	_ = http.NewResponseController(o.w).SetWriteDeadline(time.Unix(1, 0)) // fails only if the connection is closed
}

const (
	writePiece = 16 << 10    // bytes of one write; a reader that takes fewer within the limit is too slow
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

// endWith limits the current write when the context ends, so that a slow reader does not delay the
// gateway's Close. The caller must call last after the last write. last gives net/http the time
// writeGrace to send the remaining bytes, however long the earlier writes took.
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
		_ = p.c.SetWriteDeadline(time.Now().Add(writeGrace)) // fails only if the connection is closed
	}
}

// write sends all of b and flushes it.
func (p *patientWriter) write(ctx context.Context, b []byte) error {
	for len(b) > 0 {
		n := min(len(b), writePiece)
		if err := p.writePiece(ctx, func() error { _, err := p.w.Write(b[:n]); return err }); err != nil {
			return err
		}
		b = b[n:]
	}
	if err := p.writePiece(ctx, p.c.Flush); err != nil {
		return err
	}
	p.clearDeadline()
	return nil
}

// clearDeadline removes the deadline until the next write, because on HTTP/2 a deadline also ends
// an idle stream.
func (p *patientWriter) clearDeadline() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over {
		_ = p.c.SetWriteDeadline(time.Time{})
	}
}

// writePiece sends one piece within its time limit. A timeout is recognised by the clock, because
// HTTP/2 reports only that the stream is closed.
func (p *patientWriter) writePiece(ctx context.Context, send func() error) error {
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
