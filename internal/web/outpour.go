package web

import (
	"context"
	"net/http"
	"time"

	"tidemill.dev/internal/api"
)

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
