package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

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
