package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"tidemill.dev/internal/api"
)

// LogOptions say what of a run's log is wanted.
type LogOptions struct {
	Attempt    int    // 0 is the newest
	Part       string // one of those that work on it alone; empty is all of them
	Follow     bool   // until the run has ended
	Timestamps bool
}

// RunLog copies what a run's command says, or has said. The beginning of the
// run's id will do. When it is cut off it comes back and goes on behind the last
// byte that came, for as long as a gateway answers.
func (g *Gateway) RunLog(ctx context.Context, run string, o LogOptions, to io.Writer) error {
	l := &logLine{g: g, run: run, o: o, to: to}
	p := l.patience()
	for {
		before := l.got
		err := l.read(ctx)
		if err == nil {
			p.g.trouble.Store(nil)
			return nil
		}
		if l.got > before {
			p = l.patience()
		}
		var away *awayError
		if errors.As(err, &away) && ctx.Err() == nil {
			err = p.pause(ctx, away.after, away.error)
		}
		if err != nil {
			return fmt.Errorf("read the log of run %s: %w", run, err)
		}
	}
}

// logLine is the connection that a log comes by.
type logLine struct {
	g   *Gateway
	run string
	o   LogOptions
	to  io.Writer

	attempt string // whose log it begins with; empty before that is known
	got     int64
	written error // what kept a byte from being written
}

// patience is how long a gateway may be away: as long as it takes to start it
// anew, for who follows.
func (l *logLine) patience() *patience {
	if l.o.Follow {
		return l.g.patience(l.g.timeout)
	}
	return l.g.reading()
}

// read asks for what has not come yet and copies it.
func (l *logLine) read(ctx context.Context) error {
	res, err := l.g.do(ctx, l.request())
	if err != nil {
		if lastingFault(err) {
			return err
		}
		return &awayError{error: err}
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return l.refused(res)
	}
	l.attempt = res.Header.Get(api.HeaderAttempt)
	_, err = io.Copy(l, res.Body)
	switch {
	case l.written != nil:
		return l.written
	case err != nil:
		return &awayError{error: plain(err)}
	}
	return nil
}

// Write passes on what has come.
func (l *logLine) Write(b []byte) (int, error) {
	n, err := l.to.Write(b)
	l.got += int64(n)
	l.written = err
	return n, err
}

func (l *logLine) request() request {
	q := url.Values{"follow": {strconv.FormatBool(l.o.Follow)}, "timestamps": {strconv.FormatBool(l.o.Timestamps)}}
	if l.o.Attempt > 0 {
		q.Set("attempt", strconv.Itoa(l.o.Attempt))
	}
	if l.o.Part != "" {
		q.Set("part", l.o.Part)
	}
	if l.attempt != "" { // else the newest might be another by now
		q.Set("attempt", l.attempt)
		q.Set("skip", strconv.FormatInt(l.got, 10))
	}
	return request{method: http.MethodGet, path: []string{"api", "v1", "runs", l.run, "log"}, query: q}
}

func (l *logLine) refused(res *http.Response) error {
	body, err := readAll(res.Body)
	if err != nil {
		return &awayError{error: err}
	}
	a := answer{res.StatusCode, res.Header, body}
	err = l.g.fault(a)
	if after, ok := passing(a); ok {
		return &awayError{err, after}
	}
	return err
}
